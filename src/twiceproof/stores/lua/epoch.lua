-- ARGV[1]: {server, stride, {lane, …}}. A lane that was last served by another process may have lost its latest
-- writes, and its counter with them: skip more numbers than can be missing, so that no fence is drawn twice.
call('DEL', KEYS[2])  -- once a script has written, a full memory does not stop it: this must go through
local asked = cmsgpack.unpack(ARGV[1])
for _, lane in ipairs(asked[3]) do
  local last = call('HGET', lane .. ':epoch', 'server')
  if last ~= asked[1] then
    call('HSET', lane .. ':epoch', 'server', asked[1])
    if not last then
      -- A new lane, or one that lost everything: begin above whatever it may have drawn before.
      call('SETNX', lane .. ':number', string.format('%.0f', micros))
    else
      call('INCRBY', lane .. ':number', asked[2])
      call('HINCRBY', lane .. ':epoch', 'changes', 1)
    end
  end
end
return 1
