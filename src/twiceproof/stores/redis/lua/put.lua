-- A batch of one put that travels alone, as nearly all do: what commit.lua does with it, without functions and tables,
-- which took a quarter of its time. ARGV: the write's fields and the end of its record. Answers as commit.lua, but what
-- goes wrong is simply an error: there are no neighbours. Whatever can fail comes before the record.
local ABSENT, BY_FENCE, FIELDS = 0, 1, 14
local _, _, mark, lane, _, kind, member, by, value, draws, state, span, queue, due_in, keeps =
  cmsgpack.unpack_limit(ARGV[1], FIELDS, 1)  -- past the byte that says how many
local key, names = lane .. ':r:' .. kind .. '\0' .. member, lane .. ':i'
local packed = call('GET', key)
local fits = not packed
if by ~= ABSENT then
  fits = packed and struct.unpack('>I8', packed, by == BY_FENCE and FENCE_AT or VERSION_AT) == value
end
if not fits then
  call('DEL', KEYS[2])  -- refused wherever a write would be: a replica's conflicts may be old news
  return {micros, {0, packed or nil}}
end

local number = call('INCR', lane .. ':number')
local place, ending = 's' .. kind .. '\0' .. state .. '\0' .. member, ARGV[2]
local fence, created, due = 0, micros, 0
if due_in then
  due = micros + due_in
  call('ZADD', lane .. ':d:' .. kind .. '\0' .. queue, due, member)
  call('ZADD', lane .. ':h:' .. kind, 'LT', due, queue)
end
if packed then
  local _, old_state, old_queue = cmsgpack.unpack_limit(packed, 2, HEAD)
  fence, created = struct.unpack('>I8xI8', packed, FENCE_AT)
  if old_state ~= state then
    call('ZADD', names, 0, place)
    call('ZREM', names, 's' .. kind .. '\0' .. old_state .. '\0' .. member)
  end
  if struct.unpack('>I8', packed, DUE_AT) > 0 and not (due_in and old_queue == queue) then
    call('ZREM', lane .. ':d:' .. kind .. '\0' .. old_queue, member)
  end
  if keeps then ending = ending .. string.sub(packed, cmsgpack.unpack_limit(packed, 3, HEAD) + 1) end
else
  call('ZADD', names, 0, 'k' .. kind .. '\0' .. member, 0, place)
end
call('SET', key, struct.pack(
  '>BBI8BI8BI8BI8BI8BI8', 154, 207, number, 207, draws and number or fence, 207, created, 207, micros,
  207, span and micros + span or 0, 207, due) .. ending)
-- A user may lack the right to the channel: a hint less, and no error, for all has landed.
if mark then redis.pcall('PUBLISH', 'twiceproof:changes', mark) end
return {micros, number}
