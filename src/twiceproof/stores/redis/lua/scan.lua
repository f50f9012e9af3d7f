-- ARGV[1]: {kind, limit, how long the prefix of a name in the index is, {{lane, from, to}, …}}. Answers: the time,
-- then {place of the lane, member, record} each, lane by lane and in each by space and key, until there are enough.
call('DEL', KEYS[2])  -- refused wherever a write would be
local asked = cmsgpack.unpack(ARGV[1])
local kind, limit, prefix, lanes = asked[1], asked[2], asked[3], asked[4]
local answers = {micros}
for place, part in ipairs(lanes) do
  local left = limit - (#answers - 1)
  if left <= 0 then break end
  for _, name in ipairs(call('ZRANGEBYLEX', part[1] .. ':i', part[2], part[3], 'LIMIT', 0, left)) do
    local member = string.sub(name, prefix + 1)
    local found = call('GET', part[1] .. ':r:' .. kind .. '\0' .. member)
    if found then answers[#answers + 1] = {place - 1, member, found} end
  end
end
return answers
