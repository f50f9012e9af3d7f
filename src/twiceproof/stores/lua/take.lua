-- ARGV[1]: {kind, hide, {{lane, due index, how many}, …}}. Hands out what is ripe and hides it. Answers: the time,
-- then {when it was due, member, m, b} each.
local asked = cmsgpack.unpack(ARGV[1])
local kind, due = asked[1], now + asked[2]
local answers = {moment}

local function hide(lane, index, number, member, score)
  local key = lane .. ':r:' .. kind .. '\0' .. member
  local found = call('HMGET', key, 'm', 'b')
  if not found[1] then call('ZREM', index, member) return end  -- somebody deleted the record by hand
  local old = cmsgpack.unpack(found[1])
  local m = '\153' .. cmsgpack.pack(
    old[STATE], number, old[FENCE], old[NONCE], old[CREATED], old[UPDATED], old[LEASE], old[QUEUE], due)
  call('HSET', key, 'm', m)
  call('ZADD', index, due, member)
  answers[#answers + 1] = {score, member, m, found[2]}
end

for _, part in ipairs(asked[3]) do
  local found = call('ZRANGEBYSCORE', part[2], '-inf', moment, 'WITHSCORES', 'LIMIT', 0, part[3])
  local number = #found > 0 and call('INCR', part[1] .. ':number')
  for j = 1, #found, 2 do hide(part[1], part[2], number, found[j], found[j + 1]) end
end
return answers
