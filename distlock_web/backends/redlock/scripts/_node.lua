-- Put in front of every script of a node.
--
-- KEYS  1 index   sorted set of names by the µs at which their vote ends; under FENCES the highest fence, and under LASTS the
--                 µs until which the index lives at least: both negated, so that they are no vote's end
--       2 quorum  string "self;members;delay run born": which node this is, with whom it votes and how long it waits after a
--                 loss of data; in which run of the server, and since when (µs, by the clocks of the majority), it forgets
--                 nothing. A node without it, or of another run, may have forgotten votes: a server that was restarted,
--                 with the data of before or with none, flushed, or exchanged for another
--       3 N       string "token.attempt state fence since before holder"; its PTTL is what is left of the vote
-- and      {N}:waiting  sorted set of tokens that wait and listen here, by the µs at which they are forgotten
-- States: held; cooldown, kept for a while after its end; revoked, a tombstone: free.
-- `before` is the token that was revoked before this one, behind a '!'; else '-'.

local INDEX, QUORUM, N = KEYS[1], KEYS[2], KEYS[3]
local WAITING = N and '{' .. N .. '}:waiting'
local FENCES, LASTS = '{fences}', '{lasts until}' -- no name has a brace
local DAY = 86400000 -- ms
local GRACE = 15000000 -- µs: who waits asks every few seconds
local IDENT_DIGITS = 16 -- of a token: the store object that waits, by which it is told
local call, format = redis.call, string.format

local function clock() -- µs
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

local function run_id()
  local info = call('INFO', 'server')
  local _, before = string.find(info, 'run_id:', 1, true) -- a pattern would be tried at each place of a long text
  return before and string.match(info, '^%w+', before + 1) or '-'
end

-- The run of the server, as long as it matters: with a delay of 0 the nodes keep every write through a restart. A node that does
-- not tell it would vote at once when it has come back with an old snapshot.
local function current_run(who)
  local run = string.sub(who, -2) ~= ';0' and run_id()
  return run ~= '-' and (run or '-') or error('-ERR this server tells no run_id')
end

-- Why this node has no vote for who asks; nil: it has. `known`: what QUORUM is. `delay`: µs that it needs since its birth.
local function no_vote(now, known, who, delay)
  local current = current_run(who)
  if not known then
    return {-1, now}
  end
  local run, born = string.match(known, '^ (%S+) (%d+)$', #who + 1)
  if not run or string.sub(known, 1, #who) ~= who then
    return {-2, now, known}
  elseif run ~= current then
    return {-1, now}
  end
  if delay and now - born < delay then
    return {-3, now, delay - (now - born)}
  end
end

-- The index outlives its last use by half a day at least, and all that it lists: so much more than that it has to live, for a
-- vote asks for it once in a quarter of a day. What the node knows of its quorum outlives its last use by a month.
local function keep_index(ms)
  if call('PTTL', INDEX) < ms + DAY * 3 / 4 then
    call('PEXPIRE', INDEX, format('%d', ms + DAY))
  end
  if call('PTTL', QUORUM) < 29 * DAY then
    call('PEXPIRE', QUORUM, format('%d', 30 * DAY))
  end
end

-- Whose vote this value of N is; nil: it is free.
local function read(value)
  if not value then
    return nil
  end
  local lock = {}
  lock.token, lock.attempt, lock.state, lock.fence, lock.since, lock.before, lock.holder =
    string.match(value, '^(%S+)%.(%d+) (%l+) (%d+) (%d+) (%S+) (.*)$')
  if not lock.token then
    local newer = string.match(value, '^distlock/(%d+)\n') -- see core/formats.py
    error(newer and format('-FORMAT %d %s', newer, N) or '-WRONGTYPE a key that is not a lock')
  end
  return lock
end

-- For `ms`, and at least a millisecond: SET takes no less. `new`: where there is no such key, of whatever type.
local function write(lock, ms, new)
  local text = lock.token .. '.' .. lock.attempt .. ' ' .. lock.state .. ' ' .. lock.fence .. ' ' .. lock.since .. ' ' ..
    lock.before .. ' ' .. lock.holder
  if not call('SET', N, text, 'PX', format('%d', math.max(1, ms)), new and 'NX' or 'XX') then
    error('-WRONGTYPE a key that is not a lock')
  end
end

local function list(now, ms)
  call('ZADD', INDEX, format('%d', now + ms * 1000), N)
end

-- Why the vote is not this token's: 0 it is, 1 expired, 2 taken by another, 3 revoked by force.
local function loss(lock, token)
  if not lock then
    return 1
  elseif lock.token == token then
    return lock.state == 'revoked' and 3 or 0
  end
  return lock.before == '!' .. token and 3 or lock.state == 'revoked' and 1 or 2
end

-- This token waits here, until it has to have asked again.
local function wait(now, token)
  call('ZADD', WAITING, format('%d', now + GRACE), token)
  call('PEXPIRE', WAITING, format('%d', GRACE / 1000))
end

-- One of those who wait here asks again: the first whose process hears us. A failure costs some seconds, and raises nothing.
local function tell()
  for _, token in ipairs(call('ZRANGEBYSCORE', WAITING, format('%d', clock()), '+inf', 'LIMIT', 0, 100)) do
    local heard = redis.pcall('PUBLISH', 'distlock:wake:' .. string.sub(token, 1, IDENT_DIGITS), token .. ' - - ' .. N)
    if type(heard) == 'number' and heard > 0 then
      return
    end
  end
end
