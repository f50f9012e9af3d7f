-- ARGV[1]: {kind, limit, {queue, …}, few, {lane, …}}. Looks at these queues alone if `few`, else at all but these.
-- Answers: the time, then for each lane {ripe, full, later, more}: {queue, the times that are ripe, …} for each queue
-- with something ripe, the longest overdue first; 1 if there may be others; {queue, time} of those
-- that come next; 1 if there may be others.
-- A lane's heads may be earlier than what is in their queues, never later. Those that are met are put right: a look
-- costs what is due, however many queues there are.
local PAGE, LATER = 200, 8
call('DEL', KEYS[2])  -- refused wherever a write would be
local asked = cmsgpack.unpack(ARGV[1])
local kind, limit, names, few, lanes = asked[1], asked[2], asked[3], asked[4], asked[5]
local ignored = {}
for _, queue in ipairs(few and {} or names) do ignored[queue] = true end

-- When the first of a queue is due, as text, or nil. The head is put right.
local function first(lane, queue, head)
  local found = call('ZRANGE', lane .. ':d:' .. kind .. '\0' .. queue, 0, 0, 'WITHSCORES')[2]
  if found == head then return found end
  if found then
    call('ZADD', lane .. ':h:' .. kind, found, queue)
  else
    call('ZREM', lane .. ':h:' .. kind, queue)
  end
  return found
end

-- Up to `most` queues whose heads are in this range, and whether there may be more.
local function heads(lane, from, to, most)
  local found = call('ZRANGEBYSCORE', lane .. ':h:' .. kind, from, to, 'WITHSCORES', 'LIMIT', 0, most + #names)
  local met = {}
  for i = 1, #found, 2 do
    if not ignored[found[i]] then met[#met + 1] = {found[i], first(lane, found[i], found[i + 1])} end
  end
  return met, #found == 2 * (most + #names) and 1 or 0
end

local function asked_for(lane)
  local met = {}
  for i, queue in ipairs(names) do
    met[i] = {queue, call('ZRANGE', lane .. ':d:' .. kind .. '\0' .. queue, 0, 0, 'WITHSCORES')[2]}
  end
  return met, 0
end

local function ripe(lane, queue)
  local scores = call(
    'ZRANGEBYSCORE', lane .. ':d:' .. kind .. '\0' .. queue, '-inf', micros, 'WITHSCORES', 'LIMIT', 0, limit)
  local times = {queue}
  for i = 2, #scores, 2 do times[#times + 1] = scores[i] end
  return times
end

-- Of a queue of which some are ripe, and are about to be handed out, the next counts as well.
local function following(lane, queue)
  return call('ZRANGEBYSCORE', lane .. ':d:' .. kind .. '\0' .. queue, string.format('(%.0f', micros), '+inf',
    'WITHSCORES', 'LIMIT', 0, 1)[2]
end

local function look(lane)
  local met, full, next_met, more
  if few then
    met, full = asked_for(lane)
    next_met, more = {}, 0
  else
    met, full = heads(lane, '-inf', micros, math.max(PAGE, limit))
    next_met, more = heads(lane, string.format('(%.0f', micros), '+inf', LATER)
  end
  local now, later = {}, {}
  for _, one in ipairs(met) do
    local at = one[2]
    if at and tonumber(at) <= micros then
      now[#now + 1] = ripe(lane, one[1])
      at = following(lane, one[1])
    end
    if at then later[#later + 1] = {one[1], at} end
  end
  for _, one in ipairs(next_met) do
    if one[2] then later[#later + 1] = one end
  end
  return {now, full, later, more}
end

local answers = {micros}
for i, lane in ipairs(lanes) do answers[i + 1] = look(lane) end
return answers
