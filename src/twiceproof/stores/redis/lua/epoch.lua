-- ARGV[1]: {server, stride, {lane, …}, former, knew}. A lane that was last served by another process may have lost its
-- latest writes, and its counter with them: skip more numbers than can be missing, so that no fence is drawn twice.
-- `former` is given if this process has been a replica and no write may be lost: itself, as it was before. If then
-- another process served last (the lane or the caller knows of it), the result is 0 and nothing changes. Else it is 1.
call('DEL', KEYS[2])  -- once a script has written, a full memory does not stop it: this must go through
local asked = cmsgpack.unpack(ARGV[1])
local server, stride, lanes, former, knew = asked[1], asked[2], asked[3], asked[4], asked[5]
for _, lane in ipairs(former and lanes or {}) do
  local last = call('HGET', lane .. ':epoch', 'server')
  if last ~= server and last ~= former and (last or knew) then return 0 end
end
for _, lane in ipairs(lanes) do
  local last = call('HGET', lane .. ':epoch', 'server')
  if last ~= server then
    call('HSET', lane .. ':epoch', 'server', server)
    if not last then
      -- A new lane, or one that lost everything: begin above whatever it may have drawn before.
      call('SETNX', lane .. ':number', string.format('%.0f', micros))
    else
      -- From the present on: after a restore, another process may have skipped to this very number before.
      if tonumber(call('GET', lane .. ':number') or 0) < micros then
        call('SET', lane .. ':number', string.format('%.0f', micros))
      end
      call('INCRBY', lane .. ':number', stride)
      call('HINCRBY', lane .. ':epoch', 'changes', 1)
    end
  end
end
return 1
