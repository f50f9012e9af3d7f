-- ARGV: two for each write, its fields and the end of its record. Answers: the time, then for each batch its number,
-- or {index, record} of the first write that did not fit, or {-1, why}. Nothing is rolled back in Lua: whatever can
-- fail comes first. Fields are passed on one by one: a table for each write took a tenth of a claim's time.
local LANE, OP, KIND, MEMBER, BY, VALUE = 1, 2, 3, 4, 5, 6
local DRAWS, STATE, FOR, QUEUE, DUE_IN, KEEPS, ENDING = 7, 8, 9, 10, 11, 12, 13
local FIELDS = 14
local PUT, REMOVE, ABSENT, BY_FENCE = 1, 2, 0, 1
local numbers, most = {}, #ARGV / 2

local function fits(packed, by, value)
  if by == ABSENT then return not packed end
  return packed and struct.unpack('>I8', packed, by == BY_FENCE and FENCE_AT or VERSION_AT) == value
end

local function misfit(place, packed)
  call('DEL', KEYS[2])  -- refused wherever a write would be: a replica's conflicts may be old news
  return {place, packed or nil}
end

-- One trip to the counter for all batches of a lane: what is not needed is skipped.
local function draw(lane)
  local number = (numbers[lane] or call('INCRBY', lane .. ':number', most) - most) + 1
  numbers[lane] = number
  return number
end

local function remove(lane, kind, member, packed)
  local _, state, queue = cmsgpack.unpack_limit(packed, 2, HEAD)
  local name = kind .. '\0' .. member
  call('DEL', lane .. ':r:' .. name)
  call('ZREM', lane .. ':i', 'k' .. name, 's' .. kind .. '\0' .. state .. '\0' .. member)
  if struct.unpack('>I8', packed, DUE_AT) > 0 then
    local index = lane .. ':d:' .. kind .. '\0' .. queue
    call('ZREM', index, member)
    if call('EXISTS', index) == 0 then call('ZREM', lane .. ':h:' .. kind, queue) end
  end
end

local function index(lane, kind, member, state, queue, due_in, packed)
  local names, place = lane .. ':i', 's' .. kind .. '\0' .. state .. '\0' .. member
  if due_in then
    call('ZADD', lane .. ':d:' .. kind .. '\0' .. queue, micros + due_in, member)
    call('ZADD', lane .. ':h:' .. kind, 'LT', micros + due_in, queue)
  end
  if not packed then
    call('ZADD', names, 0, 'k' .. kind .. '\0' .. member, 0, place)
    return
  end
  local _, old_state, old_queue = cmsgpack.unpack_limit(packed, 2, HEAD)
  if old_state ~= state then
    call('ZADD', names, 0, place)
    call('ZREM', names, 's' .. kind .. '\0' .. old_state .. '\0' .. member)
  end
  if struct.unpack('>I8', packed, DUE_AT) > 0 and not (due_in and old_queue == queue) then
    call('ZREM', lane .. ':d:' .. kind .. '\0' .. old_queue, member)
  end
end

local function put(key, packed, number, draws, span, due_in, keeps, ending)
  local fence, created = 0, micros
  if packed then fence, created = struct.unpack('>I8xI8', packed, FENCE_AT) end
  if keeps then ending = ending .. string.sub(packed, cmsgpack.unpack_limit(packed, 3, HEAD) + 1) end
  call('SET', key, struct.pack(
    '>BBI8BI8BI8BI8BI8BI8', 154, 207, number, 207, draws and number or fence, 207, created, 207, micros,
    207, span and micros + span or 0, 207, due_in and micros + due_in or 0) .. ending)
end

-- A batch of one put: nearly all of them.
local function land_put(lane, kind, member, by, value, draws, state, span, queue, due_in, keeps, ending)
  local key = lane .. ':r:' .. kind .. '\0' .. member
  local packed = call('GET', key)
  if not fits(packed, by, value) then return misfit(0, packed) end
  local number = draw(lane)
  index(lane, kind, member, state, queue, due_in, packed)
  put(key, packed, number, draws, span, due_in, keeps, ending)
  return number
end

local function land(writes)
  local keys, olds = {}, {}
  for i, write in ipairs(writes) do
    local key = write[LANE] .. ':r:' .. write[KIND] .. '\0' .. write[MEMBER]
    local packed = call('GET', key)
    if not fits(packed, write[BY], write[VALUE]) then return misfit(i - 1, packed) end
    keys[i], olds[i] = key, packed
  end
  -- A full memory refuses only a script's first write, and never a removal: so removals alone go through, and
  -- the rest stops at the counter. Then the indexes: a foreign type stops it there, with no record changed.
  -- A record's number is of its own lane, whatever else is written with it.
  local drawn = {}
  for _, write in ipairs(writes) do
    if write[OP] == PUT and not drawn[write[LANE]] then drawn[write[LANE]] = draw(write[LANE]) end
  end
  for i, write in ipairs(writes) do
    if write[OP] == PUT then
      index(write[LANE], write[KIND], write[MEMBER], write[STATE], write[QUEUE], write[DUE_IN], olds[i])
    end
  end
  for i, write in ipairs(writes) do
    if write[OP] == PUT then
      put(keys[i], olds[i], drawn[write[LANE]], write[DRAWS], write[FOR], write[DUE_IN], write[KEEPS], write[ENDING])
    elseif write[OP] == REMOVE then
      remove(write[LANE], write[KIND], write[MEMBER], olds[i])
    end
  end
  return drawn[writes[1][LANE]] or draw(writes[1][LANE])
end

local answers, writes, marks = {micros}, {}, {}
for i = 1, #ARGV, 2 do
  local _, last, mark, lane, op, kind, member, by, value, draws, state, span, queue, due_in, keeps =
    cmsgpack.unpack_limit(ARGV[i], FIELDS, 1)  -- past the byte that says how many
  local done, answer
  -- One bad batch must not hide that its neighbours have landed.
  if last and op == PUT and not writes[1] then
    done, answer = pcall(
      land_put, lane, kind, member, by, value, draws, state, span, queue, due_in, keeps, ARGV[i + 1])
  else
    writes[#writes + 1] =
      {lane, op, kind, member, by, value, draws, state, span, queue, due_in, keeps, ARGV[i + 1]}
    if last then
      done, answer = pcall(land, writes)
      writes = {}
    end
  end
  if last then
    if not done then answer = {-1, type(answer) == 'table' and answer.err or tostring(answer)} end
    if mark and type(answer) == 'number' then marks[#marks + 1] = mark end
    answers[#answers + 1] = answer
  end
end
-- A user may lack the right to the channel: a hint less, and no error, for all has landed.
if marks[1] then redis.pcall('PUBLISH', 'twiceproof:changes', table.concat(marks, ',')) end
return answers
