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
//! 4. Nothing overflows: a level is below 2^32 * 6*10^11, its rescaling below 2^32 * (6*10^11)^2,
//!    both far under 2^127.

use std::time::{Duration, Instant};

use super::account::{AccountCategory, AccountKey, AccountStatus, RateLimiter, Replenishment};
use crate::error::{JobError, UpstreamFailure};
use crate::sync::Mutex;

/// A tenth of the 60 s window in nanoseconds: what one tenth of throttle adds to it.
const TENTH_OF_WINDOW: u128 = 6_000_000_000;
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
    fn full(budget: u32, window: u128) -> Self {
        Self {
            budget,
            level: u128::from(budget) * window,
        }
    }

    fn cap(&self, window: u128) -> u128 {
        u128::from(self.budget) * window
    }

    fn level_after(&self, elapsed: Duration, window: u128) -> u128 {
        let refill = elapsed.as_nanos().saturating_mul(u128::from(self.budget));
        self.level.saturating_add(refill).min(self.cap(window))
    }

    /// How long after the level was settled it covers `need`, to the nanosecond. `None` when the
    /// budget never does.
    fn time_until(&self, need: u64, window: u128) -> Option<Duration> {
        if need > u64::from(self.budget) {
            return None;
        }
        let deficit = (u128::from(need) * window).saturating_sub(self.level);
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
    /// The latest instant of any question, as of which [`RateLimiter::describe`] answers.
    seen_at: Instant,
    /// Successes towards the next relaxation.
    successes: u32,
    last_backpressure: Option<Instant>,
    /// How often the budget or the throttle has changed.
    revision: u64,
}

/// What a set of amounts needs of the two dimensions.
#[derive(Clone, Copy)]
struct Need {
    tokens: u64,
    requests: u64,
}

impl Need {
    fn of(amounts: &[u32]) -> Self {
        Self {
            tokens: amounts.iter().copied().map(u64::from).sum(),
            requests: amounts.len() as u64,
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            requests: self.requests.saturating_add(other.requests),
        }
    }
}

impl State {
    /// The effective window in nanoseconds.
    fn window(&self) -> u128 {
        u128::from(WHOLE + self.throttle) * TENTH_OF_WINDOW
    }

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

    fn settle(&mut self, now: Instant) {
        (self.tokens.level, self.requests.level) = self.levels_at(now);
        self.settled_at = self.settled_at.max(now);
        self.see(now);
    }

    fn see(&mut self, now: Instant) {
        self.seen_at = self.seen_at.max(now);
    }

    fn covers(&self, need: Need, now: Instant) -> bool {
        let window = self.window();
        let (need_tokens, need_requests) = (
            u128::from(need.tokens) * window,
            u128::from(need.requests) * window,
        );
        // A level only grows with time: what was settled may do.
        if need_tokens <= self.tokens.level && need_requests <= self.requests.level {
            return true;
        }
        let (tokens, requests) = self.levels_at(now);
        need_tokens <= tokens && need_requests <= requests
    }

    fn set_throttle(&mut self, throttle: u32, now: Instant) {
        self.settle(now);
        let old = self.window();
        self.revision += 1;
        self.throttle = throttle;
        let new = self.window();
        for meter in [&mut self.tokens, &mut self.requests] {
            meter.level = meter.level * new / old;
        }
    }

    fn set_budget(&mut self, budget: TokenBudget, now: Instant) {
        self.settle(now);
        let window = self.window();
        self.revision += 1;
        self.tokens.budget = budget.tokens_per_minute;
        self.requests.budget = budget.requests_per_minute;
        for meter in [&mut self.tokens, &mut self.requests] {
            meter.level = meter.level.min(meter.cap(window));
        }
    }

    fn whole(&self, now: Instant) -> (u32, u32) {
        let (tokens, requests) = self.levels_at(now);
        let window = self.window();
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
        let window = u128::from(WHOLE) * TENTH_OF_WINDOW;
        Ok(Self {
            key: AccountKey::new(name),
            state: Mutex::new(State {
                tokens: Meter::full(budget.tokens_per_minute, window),
                requests: Meter::full(budget.requests_per_minute, window),
                throttle: 0,
                settled_at: now,
                seen_at: now,
                successes: 0,
                last_backpressure: None,
                revision: 0,
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
        let mut state = self.state.lock();
        let raised = increments
            .saturating_mul(INCREMENT)
            .saturating_add(state.throttle)
            .min(MAX_THROTTLE);
        state.set_throttle(raised, now);
        state.last_backpressure = Some(now);
    }

    /// The service answered: relaxes the throttle, if there is one.
    ///
    /// Every third success takes 0.2 off; once five minutes have passed without backpressure every
    /// success takes 0.5 off.
    pub fn record_success(&self, now: Instant) {
        if self.state.lock().relax(now) {
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
        let grew = {
            let mut state = self.state.lock();
            let old = state.budget();
            if old == budget {
                return;
            }
            state.set_budget(budget, now);
            budget.tokens_per_minute > old.tokens_per_minute
                || budget.requests_per_minute > old.requests_per_minute
        };
        log::info!(
            "Updated rate limits for {}: {} tokens and {} requests per minute",
            self.name(),
            budget.tokens_per_minute,
            budget.requests_per_minute
        );
        if grew {
            self.key.capacity_grew();
        }
    }

    fn refuse_impossible(&self, state: &State, mine: Need) -> Result<(), JobError> {
        let TokenBudget {
            tokens_per_minute,
            requests_per_minute,
        } = state.budget();
        if mine.tokens > u64::from(tokens_per_minute) {
            return Err(JobError::uncorrectable(format!(
                "a demand of {} tokens exceeds the {tokens_per_minute} per minute of '{}': ask \
                 for less, or for a model with a larger budget",
                mine.tokens,
                self.name()
            )));
        }
        if mine.requests > u64::from(requests_per_minute) {
            return Err(JobError::uncorrectable(format!(
                "a demand of {} requests exceeds the {requests_per_minute} per minute of '{}': \
                 make fewer calls in one job",
                mine.requests,
                self.name()
            )));
        }
        Ok(())
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
        let (tokens, requests) = state.whole(state.seen_at);
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

    fn replenishment(&self) -> Replenishment {
        Replenishment::Time
    }

    fn fits(&self, mine: &[u32], reserved_ahead: &[u32], now: Instant) -> Result<bool, JobError> {
        let mine = Need::of(mine);
        let mut state = self.state.lock();
        state.see(now);
        self.refuse_impossible(&state, mine)?;
        Ok(state.covers(mine.and(Need::of(reserved_ahead)), now))
    }

    fn try_take(
        &self,
        mine: &[u32],
        reserved_ahead: &[u32],
        now: Instant,
    ) -> Result<bool, JobError> {
        let mine = Need::of(mine);
        let mut state = self.state.lock();
        state.see(now);
        self.refuse_impossible(&state, mine)?;
        if !state.covers(mine.and(Need::of(reserved_ahead)), now) {
            return Ok(false);
        }
        state.settle(now);
        let window = state.window();
        state.tokens.level -= u128::from(mine.tokens) * window;
        state.requests.level -= u128::from(mine.requests) * window;
        Ok(true)
    }

    fn give(&self, amounts: &[u32], now: Instant) {
        let back = Need::of(amounts);
        let mut state = self.state.lock();
        state.settle(now);
        let window = state.window();
        state.tokens.level = credited(&state.tokens, back.tokens, window);
        state.requests.level = credited(&state.requests, back.requests, window);
    }

    fn earliest_fit(&self, mine: &[u32], reserved_ahead: &[u32], _: Instant) -> Option<Instant> {
        let need = Need::of(mine).and(Need::of(reserved_ahead));
        let state = self.state.lock();
        let window = state.window();
        let tokens = state.tokens.time_until(need.tokens, window)?;
        let requests = state.requests.time_until(need.requests, window)?;
        state.settled_at.checked_add(tokens.max(requests))
    }

    fn revision(&self) -> Option<u64> {
        Some(self.state.lock().revision)
    }

    fn units(&self, amount: &u32) -> u64 {
        u64::from(*amount)
    }

    fn on_success(&self, now: Instant) {
        self.record_success(now);
    }

    fn on_rate_limit_error(&self, failure: &UpstreamFailure, now: Instant) {
        self.record_backpressure(1, now);
        log::warn!("{} upstream failure: {failure}", self.name());
    }
}

/// The level with `units` given back, bounded by the budget.
fn credited(meter: &Meter, units: u64, window: u128) -> u128 {
    meter
        .level
        .saturating_add(u128::from(units) * window)
        .min(meter.cap(window))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Wake;
    use crate::error::ErrorKind;
    use crate::testing::account_contract::{AccountFixture, check};
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn bucket(tokens: u32, requests: u32) -> (TokenBucket, Instant) {
        let now = Instant::now();
        let bucket = TokenBucket::new("gpt", TokenBudget::new(tokens, requests), now).unwrap();
        (bucket, now)
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn indicator(bucket: &TokenBucket) -> Option<String> {
        bucket.describe(bucket.key()).indicator
    }

    /// Counts the wakes of the account from here on.
    fn count_wakes(bucket: &TokenBucket) -> Arc<AtomicUsize> {
        let woken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&woken);
        let wake = Wake::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        bucket.key().install(1, &wake).unwrap();
        woken
    }

    // case TB-01
    #[test]
    fn a_drained_bucket_names_the_instant_of_the_next_fit() {
        let (bucket, now) = bucket(6_000, 600);
        assert!(bucket.try_take(&[6_000], &[], now).unwrap());
        assert!(!bucket.fits(&[100], &[], now).unwrap());
        assert_eq!(bucket.earliest_fit(&[100], &[], now), Some(now + ms(1_000)));
    }

    // case TB-02
    #[test]
    fn tokens_come_back_with_time() {
        let (bucket, now) = bucket(6_000, 600);
        assert!(bucket.try_take(&[6_000], &[], now).unwrap());
        assert!(!bucket.fits(&[100], &[], now + ms(999)).unwrap());
        assert!(bucket.fits(&[100], &[], now + ms(1_001)).unwrap());
        assert!(bucket.try_take(&[100], &[], now + ms(1_001)).unwrap());
    }

    // case TB-04
    #[test]
    fn a_throttle_of_one_doubles_the_wait() {
        let (bucket, now) = bucket(6_000, 600);
        assert!(bucket.try_take(&[6_000], &[], now).unwrap());
        bucket.record_429(now);
        bucket.record_429(now);
        assert_eq!(bucket.throttle(), 1.0);
        assert_eq!(bucket.earliest_fit(&[100], &[], now), Some(now + ms(2_000)));
    }

    // case TB-05
    #[test]
    fn beside_a_reservation_an_ask_waits_and_is_never_refused() {
        let (bucket, now) = bucket(1_000, 60);
        assert!(!bucket.fits(&[500], &[800], now).unwrap());
        assert_eq!(bucket.earliest_fit(&[500], &[800], now), None);
        assert!(bucket.fits(&[500], &[400], now).unwrap());
    }

    // case TB-06
    #[test]
    fn more_than_the_budget_is_refused_with_both_figures() {
        let (bucket, now) = bucket(1_000, 60);
        for refused in [
            bucket.fits(&[1_001], &[], now),
            bucket.try_take(&[500, 501], &[], now),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Uncorrectable { .. }));
            let text = error.to_string();
            assert!(text.contains("1001") && text.contains("1000"), "{text}");
            assert!(text.contains("exceeds"), "{text}");
        }
        assert_eq!(bucket.status(now).tokens, 1_000);
    }

    // case TB-07
    #[test]
    fn a_cap_lowered_under_a_parked_amount_refuses_it_at_its_next_look() {
        let (bucket, now) = bucket(10_000, 60);
        assert!(bucket.try_take(&[10_000], &[], now).unwrap());
        assert!(!bucket.fits(&[9_000], &[], now).unwrap());
        bucket.set_config(TokenBudget::new(8_000, 60), now);
        assert!(bucket.fits(&[9_000], &[], now).is_err());
    }

    // case TB-09
    #[test]
    fn requests_are_a_budget_of_their_own() {
        let (bucket, now) = bucket(1_000_000, 2);
        assert!(bucket.try_take(&[1], &[], now).unwrap());
        assert!(bucket.try_take(&[1], &[], now).unwrap());
        assert!(!bucket.fits(&[1], &[], now).unwrap());
        assert_eq!(bucket.earliest_fit(&[1], &[], now), Some(now + ms(30_000)));
    }

    // case TB-10
    #[test]
    fn each_amount_costs_one_request() {
        let (bucket, now) = bucket(1_000_000, 2);
        let error = bucket.fits(&[1, 1, 1], &[], now).unwrap_err();
        assert!(error.to_string().contains("requests exceeds"), "{error}");
    }

    // case TB-11
    #[test]
    fn backpressure_stretches_the_minute_up_to_ten_times() {
        let (bucket, now) = bucket(6_000, 600);
        assert_eq!((bucket.throttle(), indicator(&bucket)), (0.0, None));
        bucket.record_429(now);
        assert_eq!(bucket.throttle(), 0.5);
        assert_eq!(indicator(&bucket).as_deref(), Some("throttle:1.5x"));
        bucket.record_429(now);
        assert_eq!(indicator(&bucket).as_deref(), Some("throttle:2.0x"));
        bucket.record_429(now);
        assert_eq!(bucket.throttle(), 1.5);
        for _ in 3..20 {
            bucket.record_429(now);
        }
        assert_eq!(bucket.throttle(), 9.0);
        assert_eq!(indicator(&bucket).as_deref(), Some("throttle:10.0x"));
    }

    #[test]
    fn an_overload_is_three_increments() {
        let (bucket, now) = bucket(6_000, 600);
        bucket.record_backpressure(0, now);
        assert_eq!(bucket.throttle(), 0.0);
        bucket.record_backpressure(3, now);
        assert_eq!(bucket.throttle(), 1.5);
        bucket.record_backpressure(u32::MAX, now);
        assert_eq!(bucket.throttle(), 9.0);
    }

    // case TB-12
    #[test]
    fn every_third_success_relaxes_the_throttle_and_wakes() {
        let (bucket, now) = bucket(6_000, 600);
        let woken = count_wakes(&bucket);
        bucket.on_success(now);
        assert_eq!((bucket.throttle(), indicator(&bucket)), (0.0, None));
        bucket.record_429(now);
        for left in [0.5, 0.5, 0.3, 0.3, 0.3, 0.1, 0.1, 0.1, 0.0] {
            bucket.on_success(now);
            assert_eq!(bucket.throttle(), left);
        }
        for _ in 0..6 {
            bucket.on_success(now);
        }
        assert_eq!((bucket.throttle(), indicator(&bucket)), (0.0, None));
        assert_eq!(woken.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn after_five_quiet_minutes_every_success_relaxes_faster() {
        let (bucket, now) = bucket(6_000, 600);
        bucket.record_backpressure(4, now);
        let almost = now + ms(300_000) - Duration::from_nanos(1);
        bucket.on_success(almost);
        assert_eq!(bucket.throttle(), 2.0);
        let quiet = now + ms(300_000);
        for left in [1.5, 1.0, 0.5, 0.0, 0.0] {
            bucket.on_success(quiet);
            assert_eq!(bucket.throttle(), left);
        }
    }

    #[test]
    fn the_level_is_settled_under_the_old_rate_before_the_throttle_changes() {
        let (bucket, now) = bucket(6_000, 600);
        assert!(bucket.try_take(&[6_000], &[], now).unwrap());
        let later = now + ms(10_000);
        bucket.record_backpressure(2, later);
        assert_eq!(bucket.status(later).tokens, 1_000);
        assert_eq!(bucket.status(later + ms(10_000)).tokens, 1_500);
    }

    // case TB-15
    #[test]
    fn a_new_budget_applies_in_place() {
        let (bucket, now) = bucket(1_000_000, 600);
        let woken = count_wakes(&bucket);
        let woken = || woken.load(Ordering::SeqCst);
        bucket.record_429(now);
        bucket.set_config(TokenBudget::new(100_000, 600), now);
        let status = bucket.status(now);
        assert_eq!(status.throttle, 0.5);
        assert_eq!(
            (status.tokens, status.budget.tokens_per_minute),
            (100_000, 100_000)
        );
        assert_eq!(woken(), 0);
        bucket.set_config(TokenBudget::new(15_000_000, 600), now);
        let status = bucket.status(now);
        assert_eq!(
            (status.tokens, status.budget.tokens_per_minute),
            (100_000, 15_000_000)
        );
        assert_eq!(woken(), 1);
        bucket.set_config(TokenBudget::new(15_000_000, 600), now);
        assert_eq!(woken(), 1);
        bucket.set_config(TokenBudget::new(14_000_000, 700), now);
        assert_eq!(woken(), 2);
        bucket.set_config(TokenBudget::new(0, 9), now);
        bucket.set_config(TokenBudget::new(9, 0), now);
        assert_eq!(bucket.budget(), TokenBudget::new(14_000_000, 700));
        assert_eq!(woken(), 2);
    }

    // case TB-16
    #[test]
    fn thirty_seconds_refill_half_of_the_budget() {
        let (bucket, now) = bucket(60_000, 60);
        assert!(bucket.try_take(&[60_000], &[], now).unwrap());
        let status = bucket.status(now);
        assert_eq!((status.tokens, status.requests), (0, 59));
        let status = bucket.status(now + ms(30_000));
        assert_eq!((status.tokens, status.requests), (30_000, 60));
    }

    // case TB-17
    #[test]
    fn a_bucket_describes_itself_in_tokens() {
        let (bucket, now) = bucket(60_000, 60);
        assert!(bucket.try_take(&[20_000], &[], now).unwrap());
        let status = bucket.describe(&bucket.account_for(&1));
        assert_eq!(status.category, AccountCategory::TokenBucket);
        assert_eq!(bucket.account_for(&1).name(), "gpt");
        assert_eq!((status.capacity, status.in_use), (60_000, 20_000));
        assert_eq!(status.summary, "40000/60000 tokens, 59/60 requests");
    }

    // case ACC-06
    // case ACC-09
    #[test]
    fn tokens_count_as_units_and_only_time_brings_them_back() {
        let (bucket, _) = bucket(1_000, 60);
        let units = |amounts: &[u32]| amounts.iter().map(|a| bucket.units(a)).sum::<u64>();
        assert_eq!(units(&[300, 300]), 600);
        assert_eq!(units(&[]), 0);
        assert_eq!(bucket.replenishment(), Replenishment::Time);
    }

    #[test]
    fn a_refund_is_at_once_and_bounded_by_both_caps() {
        let (bucket, now) = bucket(1_000, 3);
        assert!(bucket.try_take(&[400, 400], &[], now).unwrap());
        bucket.give(&[400], now);
        let status = bucket.status(now);
        assert_eq!((status.tokens, status.requests), (600, 2));
        bucket.give(&[400, 400, 400], now);
        let status = bucket.status(now);
        assert_eq!((status.tokens, status.requests), (1_000, 3));
    }

    #[test]
    fn a_budget_without_a_figure_is_refused_by_field() {
        for (budget, field) in [
            (TokenBudget::new(0, 1), "tokens_per_minute"),
            (TokenBudget::new(1, 0), "requests_per_minute"),
        ] {
            let error = TokenBucket::new("gpt", budget, Instant::now()).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::InvalidInput { parameter, .. } if parameter == field),
                "{error}"
            );
        }
        assert!(TokenBucket::new(" ", TokenBudget::new(1, 1), Instant::now()).is_err());
    }

    struct Buckets {
        budget: TokenBudget,
    }

    impl AccountFixture for Buckets {
        type Limiter = TokenBucket;

        fn fresh(&self, now: Instant) -> Arc<TokenBucket> {
            Arc::new(TokenBucket::new("gpt", self.budget, now).unwrap())
        }

        fn all(&self) -> Vec<u32> {
            vec![self.budget.tokens_per_minute]
        }

        fn one(&self) -> u32 {
            1
        }

        fn too_much(&self) -> Vec<u32> {
            vec![self.budget.tokens_per_minute, 1]
        }
    }

    #[test]
    fn a_bucket_keeps_the_contract_of_accounts() {
        for budget in [
            TokenBudget::new(6_000, 600),
            TokenBudget::new(7, 1),
            TokenBudget::new(u32::MAX, u32::MAX),
        ] {
            check(&Buckets { budget });
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Take(u32, u32),
        Give(u32),
        Backpressure(u32),
        Success,
        Config(u32, u32),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let figure = prop_oneof![1..50_u32, 1_000..2_000_000_u32, Just(u32::MAX)];
        let step = prop_oneof![
            4 => (figure.clone(), 0..3_u32).prop_map(|(a, b)| Step::Take(a, b)),
            2 => figure.clone().prop_map(Step::Give),
            1 => (0..25_u32).prop_map(Step::Backpressure),
            3 => Just(Step::Success),
            1 => (figure.clone(), figure).prop_map(|(a, b)| Step::Config(a, b)),
            4 => prop_oneof![0..2_000_u64, 0..400_000_000_000_u64].prop_map(Step::Wait),
        ];
        prop::collection::vec(step, 0..40)
    }

    fn perform(bucket: &TokenBucket, steps: &[Step], start: Instant) -> Instant {
        let mut now = start;
        for step in steps {
            match *step {
                Step::Take(amount, ahead) => {
                    let _ = bucket.try_take(&[amount], &vec![1; ahead as usize], now);
                }
                Step::Give(amount) => bucket.give(&[amount], now),
                Step::Backpressure(n) => bucket.record_backpressure(n, now),
                Step::Success => bucket.record_success(now),
                Step::Config(tokens, requests) => {
                    bucket.set_config(TokenBudget::new(tokens, requests), now);
                }
                Step::Wait(nanos) => now += Duration::from_nanos(nanos),
            }
        }
        now
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn no_level_ever_leaves_nothing_to_budget(steps in steps()) {
            let (bucket, mut now) = bucket(1_000_000, 60);
            for step in &steps {
                now = perform(&bucket, std::slice::from_ref(step), now);
                let state = bucket.state.lock();
                let window = state.window();
                prop_assert!(state.tokens.level <= state.tokens.cap(window));
                prop_assert!(state.requests.level <= state.requests.cap(window));
                prop_assert!(state.throttle <= MAX_THROTTLE);
            }
        }

        #[test]
        fn an_amount_fits_at_the_named_instant_and_not_a_nanosecond_before(
            steps in steps(),
            share in 1..=1_000_u64,
            ahead in 0..3_u32,
        ) {
            let (bucket, start) = bucket(1_000_000, 60);
            let now = perform(&bucket, &steps, start);
            let budget = bucket.budget();
            let amount = (u64::from(budget.tokens_per_minute) * share).div_ceil(1_000) as u32;
            let (mine, ahead) = ([amount], vec![1; ahead as usize]);
            let behind = ahead.len() as u64;
            let possible = u64::from(amount) + behind <= u64::from(budget.tokens_per_minute)
                && behind < u64::from(budget.requests_per_minute);
            let at = bucket.earliest_fit(&mine, &ahead, now);
            prop_assert_eq!(at.is_some(), possible);
            if let Some(at) = at {
                prop_assert!(bucket.fits(&mine, &ahead, at.max(now)).unwrap());
                prop_assert!(at.saturating_duration_since(now) <= Duration::from_secs(600));
                if at > now {
                    let before = at - Duration::from_nanos(1);
                    prop_assert!(!bucket.fits(&mine, &ahead, before).unwrap());
                }
                prop_assert_eq!(bucket.fits(&mine, &ahead, now).unwrap(), at <= now);
            }
        }
    }
}
