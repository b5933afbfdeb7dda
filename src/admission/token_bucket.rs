//! Tokens and requests per minute (`TB`).
//!
//! # Invariants
//!
//! 1. Both levels are integers in *token-nanoseconds*: tokens times the effective window in
//!    nanoseconds. In that unit a budget of `b` refills exactly `b` a nanosecond, so nothing is
//!    rounded while the throttle stands still, and the instant at which an amount fits is exact.
//! 2. `0 <= level <= budget * window` in both dimensions, after every step.
//! 3. The levels are settled under the old rate before a budget or the throttle changes. A change
//!    of the window keeps the tokens and drops at most a part of one nanosecond's refill.
//! 4. What [`Floor`] says is there is there.
//! 5. Nothing overflows: a level is below 2^32 * 6*10^11, its rescaling below 2^32 * (6*10^11)^2,
//!    both far under 2^127.

mod floor;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use super::account::{AccountCategory, AccountKey, AccountStatus, RateLimiter, Replenishment};
use crate::clock::Latest;
use crate::error::{JobError, UpstreamFailure};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::unwind::quietly;
use floor::Floor;

/// A tenth of the 60 s window in nanoseconds: what one tenth of throttle adds to it.
const TENTH_OF_WINDOW: u64 = 6_000_000_000;
/// The tenths of a window without any throttle.
const WHOLE: u32 = 10;
/// The largest throttle, in tenths: 9.0 (TB-4).
const MAX_THROTTLE: u32 = 90;
/// One increment, in tenths: 0.5 (TB-4).
const INCREMENT: u32 = 5;
/// What a success takes off, in tenths: 0.2, every third time (TB-4).
const RELAXATION: u32 = 2;
/// How many successes that takes.
const SUCCESSES_PER_RELAXATION: u32 = 3;
/// What every success takes off after a quiet time, in tenths: 0.5 (TB-4).
const QUIET_RELAXATION: u32 = 5;
/// How long without backpressure is a quiet time (TB-4).
const QUIET_AFTER: Duration = Duration::from_secs(5 * 60);

/// What a model may be asked in a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBudget {
    /// Tokens per minute.
    pub tokens_per_minute: u32,
    /// Requests per minute. Each amount of a demand is one.
    pub requests_per_minute: u32,
}

impl TokenBudget {
    /// A budget of both figures.
    #[must_use]
    pub const fn new(tokens_per_minute: u32, requests_per_minute: u32) -> Self {
        Self {
            tokens_per_minute,
            requests_per_minute,
        }
    }

    fn check(self) -> Result<Self, JobError> {
        for (field, figure) in [
            ("tokens_per_minute", self.tokens_per_minute),
            ("requests_per_minute", self.requests_per_minute),
        ] {
            if figure == 0 {
                return Err(JobError::invalid_input(field, figure, "must be positive"));
            }
        }
        Ok(self)
    }
}

/// A limit of tokens and requests per minute, with a throttle that backpressure raises.
///
/// It starts full and refills continuously. The throttle `t` stretches the minute to `60 s * (1 +
/// t)`.
#[derive(Debug)]
pub struct TokenBucket {
    key: AccountKey,
    /// How often the budget or the throttle has changed. Written under the lock of the state, and
    /// beside it because it is read in every walk.
    revision: AtomicU64,
    /// What is there at least: a question that it answers needs no lock.
    floor: Floor,
    /// The latest instant of any question, as of which [`RateLimiter::describe`] answers.
    seen: Latest,
    state: Mutex<State>,
}

/// How full a [`TokenBucket`] is at one instant.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct TokenBucketStatus {
    /// Whole tokens that are there.
    pub tokens: u32,
    /// Whole requests that are there.
    pub requests: u32,
    /// What it holds when it is full and refills in a minute without a throttle.
    pub budget: TokenBudget,
    /// By how much the minute is stretched, 0 to 9.
    pub throttle: f64,
}

/// One of the two dimensions.
#[derive(Clone, Copy, Debug)]
struct Meter {
    budget: u32,
    /// In token-nanoseconds, as of `State::settled_at`.
    level: u128,
}

impl Meter {
    fn full(budget: u32, window: u64) -> Self {
        Self {
            budget,
            level: amount(u64::from(budget), window),
        }
    }

    fn cap(&self, window: u64) -> u128 {
        amount(u64::from(self.budget), window)
    }

    fn level_after(&self, elapsed: Duration, window: u64) -> u128 {
        let refill = elapsed.as_nanos().saturating_mul(u128::from(self.budget));
        self.level.saturating_add(refill).min(self.cap(window))
    }

    /// How long after the level was settled it covers `need`, to the nanosecond. `None` when the
    /// budget never does.
    fn time_until(&self, need: u64, window: u64) -> Option<Duration> {
        if need > u64::from(self.budget) {
            return None;
        }
        let deficit = amount(need, window).saturating_sub(self.level);
        let nanos = deficit.div_ceil(u128::from(self.budget));
        u64::try_from(nanos).ok().map(Duration::from_nanos)
    }
}

#[derive(Debug)]
struct State {
    tokens: Meter,
    requests: Meter,
    /// In tenths, up to [`MAX_THROTTLE`].
    throttle: u32,
    settled_at: Instant,
    /// Successes towards the next relaxation.
    successes: u32,
    last_backpressure: Option<Instant>,
}

/// What a set of amounts needs of the two dimensions.
#[derive(Clone, Copy)]
struct Need {
    tokens: u64,
    requests: u64,
}

impl Need {
    #[inline]
    fn of(amounts: &[u32]) -> Self {
        Self {
            tokens: amounts.iter().copied().map(u64::from).sum(),
            requests: amounts.len() as u64,
        }
    }

    #[inline]
    fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            requests: self.requests.saturating_add(other.requests),
        }
    }
}

impl State {
    /// The effective window in nanoseconds.
    #[inline]
    fn window(&self) -> u64 {
        u64::from(WHOLE + self.throttle) * TENTH_OF_WINDOW
    }

    #[inline]
    fn levels_at(&self, now: Instant) -> (u128, u128) {
        if now <= self.settled_at {
            return (self.tokens.level, self.requests.level);
        }
        let elapsed = now.saturating_duration_since(self.settled_at);
        let window = self.window();
        (
            self.tokens.level_after(elapsed, window),
            self.requests.level_after(elapsed, window),
        )
    }

    #[inline]
    fn settle(&mut self, now: Instant) {
        (self.tokens.level, self.requests.level) = self.levels_at(now);
        self.settled_at = self.settled_at.max(now);
    }

    /// Whether the levels were as high when they were last settled. They only grow with time.
    #[inline]
    fn has_settled(&self, need: Need) -> bool {
        self.reach(need, (self.tokens.level, self.requests.level))
    }

    #[inline]
    fn covers(&self, need: Need, now: Instant) -> bool {
        self.has_settled(need) || self.reach(need, self.levels_at(now))
    }

    #[inline]
    fn reach(&self, need: Need, (tokens, requests): (u128, u128)) -> bool {
        let window = self.window();
        amount(need.tokens, window) <= tokens && amount(need.requests, window) <= requests
    }

    fn set_throttle(&mut self, throttle: u32, now: Instant) {
        self.settle(now);
        let old = u128::from(self.window());
        self.throttle = throttle;
        let new = u128::from(self.window());
        for meter in [&mut self.tokens, &mut self.requests] {
            meter.level = meter.level * new / old;
        }
    }

    fn set_budget(&mut self, budget: TokenBudget, now: Instant) {
        self.settle(now);
        let window = self.window();
        self.tokens.budget = budget.tokens_per_minute;
        self.requests.budget = budget.requests_per_minute;
        for meter in [&mut self.tokens, &mut self.requests] {
            meter.level = meter.level.min(meter.cap(window));
        }
    }

    fn whole(&self, now: Instant) -> (u32, u32) {
        let (tokens, requests) = self.levels_at(now);
        let window = u128::from(self.window());
        let whole = |level: u128| u32::try_from(level / window).unwrap_or(u32::MAX);
        (whole(tokens), whole(requests))
    }

    fn budget(&self) -> TokenBudget {
        TokenBudget::new(self.tokens.budget, self.requests.budget)
    }

    /// Whether the throttle went down.
    fn relax(&mut self, now: Instant) -> bool {
        if self.throttle == 0 {
            return false;
        }
        let quiet = self
            .last_backpressure
            .is_none_or(|at| now.saturating_duration_since(at) >= QUIET_AFTER);
        let step = if quiet {
            self.successes = 0;
            QUIET_RELAXATION
        } else {
            self.successes += 1;
            if self.successes < SUCCESSES_PER_RELAXATION {
                return false;
            }
            self.successes = 0;
            RELAXATION
        };
        self.set_throttle(self.throttle.saturating_sub(step), now);
        true
    }
}

impl TokenBucket {
    /// A full bucket.
    ///
    /// # Errors
    /// `InvalidInput` for a blank name or a figure of zero.
    pub fn new(
        name: impl Into<String>,
        budget: TokenBudget,
        now: Instant,
    ) -> Result<Self, JobError> {
        let name = name.into();
        if name.trim().is_empty() {
            return Err(JobError::invalid_input("name", name, "must not be blank"));
        }
        let budget = budget.check()?;
        let window = u64::from(WHOLE) * TENTH_OF_WINDOW;
        Ok(Self {
            key: AccountKey::new(name),
            revision: AtomicU64::new(0),
            floor: Floor::new(budget.tokens_per_minute, budget.requests_per_minute),
            seen: Latest::new(now),
            state: Mutex::new(State {
                tokens: Meter::full(budget.tokens_per_minute, window),
                requests: Meter::full(budget.requests_per_minute, window),
                throttle: 0,
                settled_at: now,
                successes: 0,
                last_backpressure: None,
            }),
        })
    }

    /// Its name, as events and reports show it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.name()
    }

    /// The identity of the account.
    #[must_use]
    pub fn key(&self) -> &AccountKey {
        &self.key
    }

    /// By how much the minute is stretched, 0 to 9.
    #[must_use]
    pub fn throttle(&self) -> f64 {
        f64::from(self.state.lock().throttle) / f64::from(WHOLE)
    }

    /// What it holds when it is full.
    #[must_use]
    pub fn budget(&self) -> TokenBudget {
        self.state.lock().budget()
    }

    /// How full it is at `now`.
    #[must_use]
    pub fn status(&self, now: Instant) -> TokenBucketStatus {
        let state = self.state.lock();
        let (tokens, requests) = state.whole(now);
        TokenBucketStatus {
            tokens,
            requests,
            budget: state.budget(),
            throttle: f64::from(state.throttle) / f64::from(WHOLE),
        }
    }

    /// The service answered 429: one increment of throttle.
    pub fn record_429(&self, now: Instant) {
        self.record_backpressure(1, now);
    }

    /// The service pushed back: `increments` of throttle, 0.5 each. Zero does nothing.
    pub fn record_backpressure(&self, increments: u32, now: Instant) {
        if increments == 0 {
            return;
        }
        self.seen.note(now);
        let mut state = self.state.lock();
        let raised = increments
            .saturating_mul(INCREMENT)
            .saturating_add(state.throttle)
            .min(MAX_THROTTLE);
        state.set_throttle(raised, now);
        state.last_backpressure = Some(now);
        self.changed();
    }

    /// The service answered: relaxes the throttle, if there is one.
    ///
    /// Every third success takes 0.2 off; once five minutes have passed without backpressure every
    /// success takes 0.5 off.
    pub fn record_success(&self, now: Instant) {
        self.seen.note(now);
        let relaxed = {
            let mut state = self.state.lock();
            let relaxed = state.relax(now);
            if relaxed {
                self.changed();
            }
            relaxed
        };
        if relaxed {
            self.key.capacity_grew();
        }
    }

    /// Puts another budget in place. The throttle stays; a level above a smaller budget is cut, and
    /// a larger budget is not filled at once. A pair with a zero in it is ignored: it is what a
    /// service reports when it does not say.
    pub fn set_config(&self, budget: TokenBudget, now: Instant) {
        let Ok(budget) = budget.check() else {
            return;
        };
        self.seen.note(now);
        let grew = {
            let mut state = self.state.lock();
            let old = state.budget();
            if old == budget {
                return;
            }
            state.set_budget(budget, now);
            self.changed();
            budget.tokens_per_minute > old.tokens_per_minute
                || budget.requests_per_minute > old.requests_per_minute
        };
        if grew {
            self.key.capacity_grew();
        }
        quietly(|| {
            log::info!(
                "Updated rate limits for {}: {} tokens and {} requests per minute",
                self.name(),
                budget.tokens_per_minute,
                budget.requests_per_minute
            );
        });
    }

    /// The budget or the throttle has changed. Called under the lock of the state.
    fn changed(&self) {
        // Whoever sees the new revision finds no floor of the old.
        self.floor.set(0, 0);
        self.revision.fetch_add(1, Ordering::Release);
        self.key.revised();
    }

    #[inline]
    fn refuse_impossible(&self, state: &State, mine: Need) -> Result<(), JobError> {
        let tokens = u64::from(state.tokens.budget);
        let requests = u64::from(state.requests.budget);
        if mine.tokens <= tokens && mine.requests <= requests {
            return Ok(());
        }
        Err(self.impossible(state.budget(), mine))
    }

    #[cold]
    #[inline(never)]
    fn impossible(&self, budget: TokenBudget, mine: Need) -> JobError {
        let TokenBudget {
            tokens_per_minute,
            requests_per_minute,
        } = budget;
        if mine.tokens > u64::from(tokens_per_minute) {
            return JobError::uncorrectable(format!(
                "a demand of {} tokens exceeds the {tokens_per_minute} per minute of '{}': ask \
                 for less, or for a model with a larger budget",
                mine.tokens,
                self.name()
            ));
        }
        JobError::uncorrectable(format!(
            "a demand of {} requests exceeds the {requests_per_minute} per minute of '{}': \
             make fewer calls in one job",
            mine.requests,
            self.name()
        ))
    }
}

impl RateLimiter for TokenBucket {
    type Amount = u32;

    fn account_for(&self, _: &u32) -> AccountKey {
        self.key.clone()
    }

    /// As of the latest instant that the bucket was asked about, since it reads no clock.
    fn describe(&self, _: &AccountKey) -> AccountStatus {
        let state = self.state.lock();
        let budget = state.budget();
        let seen_at = self.seen.instant().unwrap_or(state.settled_at);
        let (tokens, requests) = state.whole(seen_at);
        let capacity = u64::from(budget.tokens_per_minute);
        let status = AccountStatus::new(
            AccountCategory::TokenBucket,
            capacity,
            capacity - u64::from(tokens),
        )
        .summary(format!(
            "{tokens}/{} tokens, {requests}/{} requests",
            budget.tokens_per_minute, budget.requests_per_minute
        ));
        if state.throttle == 0 {
            return status;
        }
        let stretch = WHOLE + state.throttle;
        status.indicator(format!("throttle:{}.{}x", stretch / WHOLE, stretch % WHOLE))
    }

    #[inline]
    fn replenishment(&self) -> Replenishment {
        Replenishment::Time
    }

    #[inline]
    fn fits(&self, mine: &[u32], reserved_ahead: &[u32], now: Instant) -> Result<bool, JobError> {
        let mine = Need::of(mine);
        let need = mine.and(Need::of(reserved_ahead));
        self.seen.note(now);
        if self.floor.covers(need) {
            return Ok(true);
        }
        let state = self.state.lock();
        self.refuse_impossible(&state, mine)?;
        if state.has_settled(need) {
            let (tokens, requests) = state.whole(state.settled_at);
            self.floor.set(tokens, requests);
            return Ok(true);
        }
        Ok(state.covers(need, now))
    }

    #[inline]
    fn try_take(
        &self,
        mine: &[u32],
        reserved_ahead: &[u32],
        now: Instant,
    ) -> Result<bool, JobError> {
        let mine = Need::of(mine);
        self.seen.note(now);
        let mut state = self.state.lock();
        self.refuse_impossible(&state, mine)?;
        if !state.covers(mine.and(Need::of(reserved_ahead)), now) {
            return Ok(false);
        }
        state.settle(now);
        let window = state.window();
        state.tokens.level -= amount(mine.tokens, window);
        state.requests.level -= amount(mine.requests, window);
        self.floor.lower(mine);
        Ok(true)
    }

    #[inline]
    fn give(&self, amounts: &[u32], now: Instant) {
        let back = Need::of(amounts);
        self.seen.note(now);
        let mut state = self.state.lock();
        state.settle(now);
        let window = state.window();
        state.tokens.level = credited(&state.tokens, back.tokens, window);
        state.requests.level = credited(&state.requests, back.requests, window);
    }

    #[inline]
    fn earliest_fit(&self, mine: &[u32], reserved_ahead: &[u32], _: Instant) -> Option<Instant> {
        let need = Need::of(mine).and(Need::of(reserved_ahead));
        let state = self.state.lock();
        let window = state.window();
        let tokens = state.tokens.time_until(need.tokens, window)?;
        let requests = state.requests.time_until(need.requests, window)?;
        state.settled_at.checked_add(tokens.max(requests))
    }

    #[inline]
    fn revision(&self) -> Option<u64> {
        Some(self.revision.load(Ordering::Acquire))
    }

    #[inline]
    fn announces_revisions(&self) -> bool {
        true
    }

    #[inline]
    fn units(&self, amount: &u32) -> u64 {
        u64::from(*amount)
    }

    fn on_success(&self, now: Instant) {
        self.record_success(now);
    }

    fn on_rate_limit_error(&self, failure: &UpstreamFailure, now: Instant) {
        self.record_backpressure(1, now);
        quietly(|| log::warn!("{} upstream failure: {failure}", self.name()));
    }
}

/// So many tokens, or requests, in the unit of the levels.
#[inline]
fn amount(units: u64, window: u64) -> u128 {
    u128::from(units) * u128::from(window)
}

/// The level with `units` given back, bounded by the budget.
fn credited(meter: &Meter, units: u64, window: u64) -> u128 {
    meter
        .level
        .saturating_add(amount(units, window))
        .min(meter.cap(window))
}
