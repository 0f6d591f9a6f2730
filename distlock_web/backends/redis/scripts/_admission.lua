-- Who may have the lock beside those that have it, and in how long.
--
-- A token of one that is not alone ends with how many may hold the lock, itself among them: "/<n>". The smallest of these
-- numbers counts. A token without one, the plain lock's, wants to be alone. A reader's number is SHARED: it lets in readers alone.

local function limit_of(token) -- or of an entry of a line, which begins with it
  return tonumber(string.match(token, '^[^%s/]+/(%d+)') or 1)
end

local SHARED = 1000000

local function at_once(one, other)
  return (one >= SHARED) == (other >= SHARED) and math.min(one, other) or 1
end

-- Whether the lock has no owner.
local function is_free(lock)
  return not lock or lock.state == 'released' or lock.state == 'revoked'
end

-- Whether this token may have the lock, beside those that have it.
local function admits(lock, token)
  return is_free(lock) or (lock.state == 'shared' and lock.count < at_once(lock.limit, limit_of(token)))
end

-- In how many ms so many leases have ended that one with this limit may have it; all of them, where others stand in front.
local function free_in(lock, limit, now)
  if tonumber(lock) then
    return lock
  elseif not lock.shares then
    return math.max(call('PTTL', N), 1)
  end
  if not lock.sorted then
    table.sort(lock.ends)
    lock.sorted = true
  end
  local needed = lock.count - at_once(lock.limit, limit) + 1
  local ends = lock.ends[needed > 0 and needed or lock.count] or 0
  return math.max(math.ceil((ends - now) / 1000), 1)
end
