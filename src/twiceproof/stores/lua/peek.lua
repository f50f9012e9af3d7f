-- ARGV[1]: {limit, names of due indexes}. Answers: the time, then for each {the times that are ripe, the first that
-- is not}.
call('DEL', KEYS[2])  -- refused wherever a write would be
local asked = cmsgpack.unpack(ARGV[1])
local answers = {micros}
for i, index in ipairs(asked[2]) do
  local found = call('ZRANGEBYSCORE', index, '-inf', micros, 'WITHSCORES', 'LIMIT', 0, asked[1])
  local later = call('ZRANGEBYSCORE', index, string.format('(%.0f', micros), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local ripe = {}
  for j = 2, #found, 2 do ripe[#ripe + 1] = found[j] end
  answers[i + 1] = {ripe, later[2] or false}
end
return answers
