-- ARGV[1]: names of records. Answers: the time, then {m, b} each.
call('DEL', KEYS[2])  -- refused wherever a write would be: on a replica, on a master cut off from its replicas
local answers = {moment}
for i, key in ipairs(cmsgpack.unpack(ARGV[1])) do answers[i + 1] = call('HMGET', key, 'm', 'b') end
return answers
