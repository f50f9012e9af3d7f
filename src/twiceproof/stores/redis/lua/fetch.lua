-- ARGV[1]: names of records. Answers: the time, then each record, or nil.
call('DEL', KEYS[2])  -- refused wherever a write would be: on a replica, on a master cut off from its replicas
local answers = {micros}
for i, key in ipairs(cmsgpack.unpack(ARGV[1])) do answers[i + 1] = call('GET', key) end
return answers
