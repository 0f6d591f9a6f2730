-- Put in front of every script on one lock: its keys, and what they look like.
--
-- KEYS  1 N           string "token state fence since before holder"; its PTTL is the lease
--       2 {N}:queue   sorted set: the processes that wait, by the place of their first waiter (the µs at which it came).
--                     Each has a line, {N}:queue:<process>: sorted set of "token expire holder" by place
--       3 index       sorted set of names by the µs at which their lease ends; under FENCES the highest fence, negated;
--                     MARK and its double by the quarter of a day since 1970 in which it had its TTL, negated. In a
--                     cluster there is an index for each slot, with a tag in braces
-- A token's first 16 characters name its process, to be exact a store of a process; it listens on distlock:wake:<those>, in
-- a cluster with :<node>.
-- States: held; contended, which is held while others may wait; granted, the same when it was handed over and its owner has
-- not asked since (it may have heard of it all the same); transit, detached and not yet attached; cooldown, kept for a
-- while after its end; done, the same with a record: the last line of the value; released and revoked, tombstones: free,
-- with the token of the last owner.
-- `before` is the token of the owner before this one if that is worth knowing, behind a '!' if it was revoked; else '-'. Of
-- several who had it together each, with a comma between them.
--
-- A redis.call costs more than the command that it runs, and so does a function that is defined: the way of a free lock
-- makes three calls, and stands before what it does not need (`-- include: _enter`).

local N, QUEUE, INDEX = KEYS[1], KEYS[2], KEYS[3]
local FENCES, MARK, DOUBLE = '{fences}', '{lasts}', '{lasts too}' -- in the index; no name has a brace
local QUARTER = 21600000000 -- of a day, in µs: so often the index has its TTL anew
local call, format = redis.call, string.format

local moment
local function clock() -- µs, the same for all of a script; exact, for a double holds whole numbers up to 2^53
  if not moment then
    local time = call('TIME')
    moment = time[1] * 1000000 + time[2]
  end
  return moment
end
