-- Shared by all scripts. KEYS[1] is a lane's counter, KEYS[2] a key that never exists: while a cluster moves the
-- slot, a present and an absent key together make it answer TRYAGAIN, so that no script sees half a lane.
if redis.replicate_commands then redis.replicate_commands() end  -- Redis 6.2: TIME before a write
local call = redis.call
@NOW@
local moment = string.format('%.17g', now)

-- lane:r:kind.member  a record: a hash of 'm', what the store knows of it, and 'b', its body, which heartbeats
--                     and wake-ups need not rewrite
-- lane:i              the index: members 'k' kind . member and 's' kind . state . member, in the order of their bytes
-- lane:d:kind.queue   what is due when: members by time
-- where a member is space.key and the dots are NULs
-- and 'm' is an array of nine (its first byte, 153), so that a nil in it is kept:
local STATE, VERSION, FENCE, NONCE, CREATED, UPDATED, LEASE, QUEUE, DUE = 1, 2, 3, 4, 5, 6, 7, 8, 9
