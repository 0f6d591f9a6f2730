-- How those who wait are told.

local NUDGED = 4 -- processes that are told of a lease that was shortened

-- Where a process is told. In a cluster that is a channel for each node, for PUBLISH reaches the subscribers of all: only
-- who listens here is told here, and hears it from here alone.
local node = not string.find(INDEX, '{', 1, true) and ''
local function channel(process)
  node = node or ':' .. call('CLUSTER', 'MYID')
  return 'distlock:wake:' .. process .. node
end

local function listens(process)
  return call('PUBSUB', 'NUMSUB', channel(process))[2] > 0
end

-- The same of a few, in one call: a table of those that listen.
local function listening(processes)
  local channels, found = {}, {}
  for i, process in ipairs(processes) do
    channels[i] = channel(process)
  end
  local counts = call('PUBSUB', 'NUMSUB', unpack(channels))
  for i, process in ipairs(processes) do
    found[process] = counts[2 * i] > 0
  end
  return found
end

-- A message to one waiter: "token fence at name" of a grant, '-' for both numbers where it shall ask. One that is lost
-- costs a lease at most, so a failure is not ours to raise.
local function tell(process, token, fence, at)
  redis.pcall('PUBLISH', channel(process), token .. ' ' .. fence .. ' ' .. at .. ' ' .. N)
end

-- Who waits may enter sooner than it knows: the first processes that hear of it ask again. `known` and `lock`: the lock as
-- they know it, and as it is; or in how many ms its lease ends.
local function nudge(known, lock)
  if tonumber(known) and known <= (tonumber(lock) or 0) + 50 then
    return
  end
  local processes, told = call('ZRANGE', QUEUE, '0', '31'), 0
  local now = processes[1] and (type(known) == 'table' or type(lock) == 'table') and clock()
  local function is_sooner(limit)
    return free_in(known, limit, now) > free_in(lock, limit, now) + 50
  end
  -- A release that hands its place on makes no turn sooner, whatever the limits are: then no line is read.
  local limit, highest = 1, math.max(tonumber(known) and 1 or known.count, tonumber(lock) and 1 or lock.count) + 1
  while processes[1] and limit <= highest and not is_sooner(limit) do
    limit = limit + 1
  end
  for i = 1, limit <= highest and #processes or 0 do
    local first = call('ZRANGE', QUEUE .. ':' .. processes[i], '0', '0')[1]
    local token = first and string.match(first, '^%S+')
    if first and told < NUDGED and is_sooner(limit_of(token)) and listens(processes[i]) then
      tell(processes[i], token, '-', '-')
      told = told + 1
    end
  end
end
