-- ARGV[1]: {kind, hide, {{lane, queue, how many}, …}}. Hands out what is ripe and hides it. Answers: the time,
-- then {when it was due, member, record} each.
local asked = cmsgpack.unpack(ARGV[1])
local kind, due = asked[1], micros + asked[2]
local answers = {micros}

local function hide(lane, index, number, member, score)
  local key = lane .. ':r:' .. kind .. '\0' .. member
  local old = call('GET', key)
  if not old then call('ZREM', index, member) return end  -- the record was deleted by hand
  local record = struct.pack('>BBI8', 154, 207, number) .. string.sub(old, 11, 46)
    .. struct.pack('>BI8', 207, due) .. string.sub(old, HEAD + 1)
  call('SET', key, record)
  call('ZADD', index, due, member)
  answers[#answers + 1] = {score, member, record}
end

for _, part in ipairs(asked[3]) do
  local index = part[1] .. ':d:' .. kind .. '\0' .. part[2]
  local found = call('ZRANGEBYSCORE', index, '-inf', micros, 'WITHSCORES', 'LIMIT', 0, part[3])
  local number = #found > 0 and call('INCR', part[1] .. ':number')
  for j = 1, #found, 2 do hide(part[1], index, number, found[j], found[j + 1]) end
  local first = call('ZRANGE', index, 0, 0, 'WITHSCORES')[2]
  if first then call('ZADD', part[1] .. ':h:' .. kind, first, part[2]) end
end
return answers
