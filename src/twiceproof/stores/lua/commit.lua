-- ARGV[1]: batches {lane, nonce, writes, mark of a space to tell others of}. Answers: the time, then for each batch its number, or {index, m, b} of
-- the first write that did not fit, or {-1, why}. Nothing is rolled back in Lua: whatever can fail comes first.
local OP, KIND, MEMBER, BY, VALUE, DRAW, NEW_STATE, FOR, NEW_QUEUE, DUE_IN, BODY = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
local PUT, REMOVE, ABSENT, BY_FENCE = 1, 2, 0, 1
local batches, numbers, marks = cmsgpack.unpack(ARGV[1]), {}, {}

local function remove(lane, write, key, old)
  call('DEL', key)
  local kind, member = write[KIND] .. '\0', write[MEMBER]
  call('ZREM', lane .. ':i', 'k' .. kind .. member, 's' .. kind .. old[STATE] .. '\0' .. member)
  if old[DUE] then call('ZREM', lane .. ':d:' .. kind .. old[QUEUE], member) end
end

local function index(lane, write, old)
  local kind, member, state = write[KIND] .. '\0', write[MEMBER], write[NEW_STATE]
  if not old then
    call('ZADD', lane .. ':i', 0, 'k' .. kind .. member, 0, 's' .. kind .. state .. '\0' .. member)
  elseif old[STATE] ~= state then
    call('ZADD', lane .. ':i', 0, 's' .. kind .. state .. '\0' .. member)
    call('ZREM', lane .. ':i', 's' .. kind .. old[STATE] .. '\0' .. member)
  end
  if write[DUE_IN] then
    call('ZADD', lane .. ':d:' .. kind .. write[NEW_QUEUE], now + write[DUE_IN], member)
  end
  if old and old[DUE] and not (write[DUE_IN] and old[QUEUE] == write[NEW_QUEUE]) then
    call('ZREM', lane .. ':d:' .. kind .. old[QUEUE], member)
  end
end

local function put(write, key, old, number, nonce)
  local m = '\153' .. cmsgpack.pack(
    write[NEW_STATE], number, write[DRAW] and number or (old and old[FENCE] or 0), nonce, old and old[CREATED] or now,
    now, write[FOR] and now + write[FOR], write[NEW_QUEUE], write[DUE_IN] and now + write[DUE_IN])
  if write[BODY] then
    call('HSET', key, 'm', m, 'b', write[BODY])
  else
    call('HSET', key, 'm', m)
  end
end

local function land(batch)
  local lane, nonce, writes = batch[1], batch[2], batch[3]
  local keys, olds, puts = {}, {}, false
  for i, write in ipairs(writes) do
    local key = lane .. ':r:' .. write[KIND] .. '\0' .. write[MEMBER]
    local m = call('HGET', key, 'm')
    local old = m and cmsgpack.unpack(m)
    local fits = not old
    if write[BY] ~= ABSENT then fits = old and old[write[BY] == BY_FENCE and FENCE or VERSION] == write[VALUE] end
    if not fits then
      local body = m and call('HGET', key, 'b')
      call('DEL', KEYS[2])  -- refused wherever a write would be: a replica's conflicts may be old news
      return m and {i - 1, m, body} or {i - 1}
    end
    keys[i], olds[i] = key, old
    puts = puts or write[OP] == PUT
  end
  -- A full memory refuses only a script's first write, and never a removal: so removals alone go through, and
  -- the rest stops at the counter. Then the indexes: a foreign type stops it there, with no record changed.
  for i, write in ipairs(puts and {} or writes) do
    if write[OP] == REMOVE then remove(lane, write, keys[i], olds[i]) end
  end
  local drawn = numbers[lane]  -- one trip to the counter for all batches of a lane: what is not needed is skipped
  drawn.last = drawn.last or call('INCRBY', lane .. ':number', drawn.wanted) - drawn.wanted
  local number = drawn.last + 1
  drawn.last = number
  for i, write in ipairs(puts and writes or {}) do
    if write[OP] == PUT then index(lane, write, olds[i]) end
  end
  for i, write in ipairs(puts and writes or {}) do
    if write[OP] == PUT then put(write, keys[i], olds[i], number, nonce) end
    if write[OP] == REMOVE then remove(lane, write, keys[i], olds[i]) end
  end
  if batch[4] then marks[#marks + 1] = batch[4] end
  return number
end

for _, batch in ipairs(batches) do
  local drawn = numbers[batch[1]]
  if drawn then drawn.wanted = drawn.wanted + 1 else numbers[batch[1]] = {wanted = 1} end
end
local answers = {moment}
for i, batch in ipairs(batches) do
  local done, answer = pcall(land, batch)  -- one bad batch must not hide that its neighbours have landed
  if not done then answer = {-1, type(answer) == 'table' and answer.err or tostring(answer)} end
  answers[i + 1] = answer
end
-- A user may lack the right to the channel: a hint less, and no error, for all has landed.
if marks[1] then redis.pcall('PUBLISH', 'twiceproof:changes', table.concat(marks, ',')) end
return answers
