-- ARGV: two for each write, its fields and the end of its record. Answers: the time, then for each batch its number,
-- or {index, record} of the first write that did not fit, or {-1, why}. Nothing is rolled back in Lua: whatever can
-- fail comes first.
local END, LAST, MARK, LANE, OP, KIND, MEMBER, BY, VALUE = 1, 2, 3, 4, 5, 6, 7, 8, 9
local DRAW, NEW_STATE, FOR, NEW_QUEUE, DUE_IN, KEEP = 10, 11, 12, 13, 14, 15
local FIELDS = 14
local PUT, REMOVE, ABSENT, BY_FENCE = 1, 2, 0, 1
local numbers, marks, most = {}, {}, #ARGV / 2

local function remove(write, key, old)
  local lane, kind, member = write[LANE], write[KIND] .. '\0', write[MEMBER]
  local _, state, queue = cmsgpack.unpack_limit(old.packed, 2, HEAD)
  call('DEL', key)
  call('ZREM', lane .. ':i', 'k' .. kind .. member, 's' .. kind .. state .. '\0' .. member)
  if old[DUE] > 0 then call('ZREM', lane .. ':d:' .. kind .. queue, member) end
end

local function index(write, old)
  local lane, kind, member, new = write[LANE], write[KIND] .. '\0', write[MEMBER], write[NEW_STATE]
  if write[DUE_IN] then call('ZADD', lane .. ':d:' .. kind .. write[NEW_QUEUE], micros + write[DUE_IN], member) end
  if not old then
    call('ZADD', lane .. ':i', 0, 'k' .. kind .. member, 0, 's' .. kind .. new .. '\0' .. member)
    return
  end
  local _, state, queue = cmsgpack.unpack_limit(old.packed, 2, HEAD)
  if state ~= new then
    call('ZADD', lane .. ':i', 0, 's' .. kind .. new .. '\0' .. member)
    call('ZREM', lane .. ':i', 's' .. kind .. state .. '\0' .. member)
  end
  if old[DUE] > 0 and not (write[DUE_IN] and queue == write[NEW_QUEUE]) then
    call('ZREM', lane .. ':d:' .. kind .. queue, member)
  end
end

local function put(write, key, old, number)
  local ending = write[END]
  if write[KEEP] then ending = ending .. string.sub(old.packed, cmsgpack.unpack_limit(old.packed, 3, HEAD) + 1) end
  call('SET', key, struct.pack(
    '>BBI8BI8BI8BI8BI8BI8', 154, 207, number, 207, write[DRAW] and number or (old and old[FENCE] or 0),
    207, old and old[CREATED] or micros, 207, micros, 207, write[FOR] and micros + write[FOR] or 0,
    207, write[DUE_IN] and micros + write[DUE_IN] or 0) .. ending)
end

local function land(writes)
  local keys, olds, puts = {}, {}, false
  for i, write in ipairs(writes) do
    local key = write[LANE] .. ':r:' .. write[KIND] .. '\0' .. write[MEMBER]
    local packed, old = call('GET', key), nil
    if packed then
      old = {struct.unpack('>xxI8xI8xI8xI8xI8xI8', packed)}
      old.packed = packed
    end
    local fits = not old
    if write[BY] ~= ABSENT then fits = old and old[write[BY] == BY_FENCE and FENCE or VERSION] == write[VALUE] end
    if not fits then
      call('DEL', KEYS[2])  -- refused wherever a write would be: a replica's conflicts may be old news
      return {i - 1, packed or nil}
    end
    keys[i], olds[i] = key, old
    puts = puts or write[OP] == PUT
  end
  -- A full memory refuses only a script's first write, and never a removal: so removals alone go through, and
  -- the rest stops at the counter. Then the indexes: a foreign type stops it there, with no record changed.
  for i, write in ipairs(puts and {} or writes) do
    if write[OP] == REMOVE then remove(write, keys[i], olds[i]) end
  end
  local lane = writes[1][LANE]  -- one trip to the counter for all batches of a lane: what is not needed is skipped
  local number = (numbers[lane] or call('INCRBY', lane .. ':number', most) - most) + 1
  numbers[lane] = number
  for i, write in ipairs(puts and writes or {}) do
    if write[OP] == PUT then index(write, olds[i]) end
  end
  for i, write in ipairs(puts and writes or {}) do
    if write[OP] == PUT then put(write, keys[i], olds[i], number) end
    if write[OP] == REMOVE then remove(write, keys[i], olds[i]) end
  end
  marks[#marks + 1] = writes[1][MARK]
  return number
end

local answers, writes = {micros}, {}
for i = 1, #ARGV, 2 do
  local write = {cmsgpack.unpack_limit(ARGV[i], FIELDS, 1)}  -- past the byte that says how many
  write[END] = ARGV[i + 1]
  writes[#writes + 1] = write
  if write[LAST] then
    local done, answer = pcall(land, writes)  -- one bad batch must not hide that its neighbours have landed
    if not done then answer = {-1, type(answer) == 'table' and answer.err or tostring(answer)} end
    answers[#answers + 1], writes = answer, {}
  end
end
-- A user may lack the right to the channel: a hint less, and no error, for all has landed.
if marks[1] then redis.pcall('PUBLISH', 'twiceproof:changes', table.concat(marks, ',')) end
return answers
