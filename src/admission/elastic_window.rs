//! Requests per sliding window, with a throttle and a circuit breaker (`EW`).
//!
//! # Invariants
//!
//! 1. `stamps` are in ascending order, one for each request that may still count, and at no instant
//!    do more than `max_requests` of them lie inside the effective window.
//! 2. A stamp that has fallen out stays out: before the throttle changes the window, those that the
//!    old window has let go are dropped. So what counts does not depend on who asked, and when.
//! 3. The throttle is whole tenths, `0 <= throttle <= max_throttle`.
//! 4. Nothing is added to an instant that could overflow: ages are compared, and a deadline past
//!    the end of time is none.

mod circuit;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::account::{AccountCategory, AccountKey, AccountStatus, RateLimiter, Replenishment};
use crate::error::{JobError, UpstreamFailure};
use crate::sync::Mutex;
use crate::unwind::quietly;

use circuit::Circuit;

pub use circuit::CircuitState;
pub use settings::ElasticWindowBuilder;

/// The tenths of a window without any throttle.
const WHOLE: u32 = 10;

/// A limit of requests in any stretch of time as long as its window.
///
/// Failures of the service stretch the window to `base * (1 + throttle)`; successes relax it. When
/// the service goes on failing at the largest throttle the circuit opens and everyone is refused
/// until a cooldown is over and one probe has succeeded.
///
/// What jobs take counts against the window whatever becomes of them, and a job that takes from it
/// needs a place in the HTTP pool as well.
///
/// It keeps the instant of each request that counts, 16 bytes, until the next request after it has left the
/// window: at most `max_requests` of them, in a buffer that may be twice as large. A window of a million
/// requests takes up to 32 MB; a [`TokenBucket`](super::TokenBucket) takes the same few bytes whatever its
/// budget.
///
/// ```
/// use std::time::Duration;
/// use nucleo_runtime::admission::ElasticWindow;
///
/// struct SearchRateLimiter;
///
/// let search = ElasticWindow::for_service::<SearchRateLimiter>(50, Duration::from_secs(1)).build()?;
/// assert_eq!(search.name(), "Search");
/// assert!(ElasticWindow::builder("search", 0, Duration::from_secs(1)).build().is_err());
/// # Ok::<(), nucleo_runtime::JobError>(())
/// ```
#[derive(Debug)]
pub struct ElasticWindow {
    key: AccountKey,
    settings: ElasticWindowBuilder,
    state: Mutex<State>,
}

/// An [`ElasticWindow`] at one instant.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ElasticWindowStatus {
    /// How many requests fit into a window.
    pub max_requests: u32,
    /// How many of them are left.
    pub available: u32,
    /// By how much the window is stretched, from 0.
    pub throttle: f64,
    /// How long the window is at that throttle.
    pub window: Duration,
    /// Whether the service is asked.
    pub circuit: CircuitState,
    /// For how long the circuit stays open; zero when it is not.
    pub cooldown_remaining: Duration,
}

#[derive(Debug, Default)]
struct State {
    stamps: VecDeque<Instant>,
    /// In tenths.
    throttle: u32,
    /// Successes towards the next decrease.
    successes: u32,
    /// Failures in a row that came at the largest throttle.
    failures_at_max: u32,
    last_pressure: Option<Instant>,
    circuit: Circuit,
    /// What the service last said when it failed.
    last_failure: Option<String>,
    /// The latest instant of any question, as of which [`RateLimiter::describe`] answers.
    seen_at: Option<Instant>,
    /// How many amounts were taken and have not come back, most of which never will.
    out: u64,
    /// How often the throttle has changed or the circuit has closed.
    revision: u64,
}

impl State {
    fn see(&mut self, now: Instant) {
        self.seen_at = self.seen_at.max(Some(now));
    }

    /// How many stamps at the front have left a window of this length.
    fn gone(&self, window: Duration, now: Instant) -> usize {
        self.stamps
            .partition_point(|stamp| now.saturating_duration_since(*stamp) >= window)
    }

    fn counted(&self, window: Duration, now: Instant) -> usize {
        self.stamps.len() - self.gone(window, now)
    }

    fn drop_gone(&mut self, window: Duration, now: Instant) {
        let gone = self.gone(window, now);
        self.stamps.drain(..gone);
    }
}

/// What the log is told once the lock is let go.
#[derive(Clone, Copy)]
enum Turn {
    Opened(Duration),
    Closed,
}

impl ElasticWindow {
    /// Begins a window named `name` of `max_requests` in any `base_window`.
    pub fn builder(
        name: impl Into<String>,
        max_requests: u32,
        base_window: Duration,
    ) -> ElasticWindowBuilder {
        ElasticWindowBuilder::new(name.into(), max_requests, base_window)
    }

    /// As [`builder`](Self::builder), named for the type `T` without a trailing `RateLimiter`.
    pub fn for_service<T: ?Sized>(
        max_requests: u32,
        base_window: Duration,
    ) -> ElasticWindowBuilder {
        ElasticWindowBuilder::for_service::<T>(max_requests, base_window)
    }

    fn from_settings(settings: ElasticWindowBuilder) -> Self {
        Self {
            key: AccountKey::new(settings.name.as_str()),
            settings,
            state: Mutex::default(),
        }
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

    /// By how much the window is stretched, from 0.
    #[must_use]
    pub fn throttle(&self) -> f64 {
        f64::from(self.state.lock().throttle) / f64::from(WHOLE)
    }

    /// Everything at one instant.
    #[must_use]
    pub fn status(&self, now: Instant) -> ElasticWindowStatus {
        let state = self.state.lock();
        let window = self.settings.window_at(state.throttle);
        let circuit = self.circuit_at(&state, now);
        let taken = u32::try_from(state.counted(window, now)).unwrap_or(u32::MAX);
        ElasticWindowStatus {
            max_requests: self.settings.max_requests,
            available: self.settings.max_requests.saturating_sub(taken),
            throttle: f64::from(state.throttle) / f64::from(WHOLE),
            window,
            circuit: circuit.state(),
            cooldown_remaining: circuit.remaining(now),
        }
    }

    /// The service asks for less without failing, in a header for example: the throttle goes up
    /// as at a failure. This never opens the circuit.
    pub fn on_advisory_pressure(&self, now: Instant) {
        self.raise(&mut self.state.lock(), now);
    }

    fn circuit_at(&self, state: &State, now: Instant) -> Circuit {
        state.circuit.at(now, self.settings.probe_expires_after())
    }

    fn raise(&self, state: &mut State, now: Instant) {
        let raised = state.throttle.saturating_add(self.settings.increment);
        self.set_throttle(state, raised.min(self.settings.max_throttle), now);
        state.successes = 0;
        state.last_pressure = state.last_pressure.max(Some(now));
    }

    fn set_throttle(&self, state: &mut State, throttle: u32, now: Instant) {
        state.see(now);
        let window = self.settings.window_at(state.throttle);
        state.drop_gone(window, now);
        state.revision += 1;
        state.throttle = throttle;
    }

    /// Whether the throttle went down.
    fn relax(&self, state: &mut State, now: Instant) -> bool {
        if state.throttle == 0 {
            return false;
        }
        let quiet = state
            .last_pressure
            .is_none_or(|at| now.saturating_duration_since(at) >= self.settings.recovery_after);
        let step = if quiet {
            self.settings.quiet_decrement()
        } else {
            state.successes += 1;
            if state.successes < self.settings.successes_per_decrease {
                return false;
            }
            self.settings.decrement
        };
        state.successes = 0;
        self.set_throttle(state, state.throttle.saturating_sub(step), now);
        true
    }

    fn fail(&self, failure: &UpstreamFailure, now: Instant) -> Option<Turn> {
        let mut state = self.state.lock();
        let at_max = state.throttle >= self.settings.max_throttle;
        self.raise(&mut state, now);
        state.last_failure = Some(failure.to_string());
        state.circuit = self.circuit_at(&state, now);
        match state.circuit.state() {
            CircuitState::Healthy if at_max => {
                state.failures_at_max += 1;
                if state.failures_at_max < self.settings.failures_to_block {
                    return None;
                }
                state.circuit = Circuit::open(now, self.settings.initial_cooldown);
            }
            CircuitState::Probing => {
                state.circuit = state.circuit.failed(now, self.settings.max_cooldown);
            }
            CircuitState::Healthy | CircuitState::Blocked => return None,
        }
        state.failures_at_max = 0;
        Some(Turn::Opened(state.circuit.remaining(now)))
    }

    /// Whether capacity grew, and what the circuit did.
    fn succeed(&self, now: Instant) -> (bool, Option<Turn>) {
        let mut state = self.state.lock();
        state.see(now);
        state.failures_at_max = 0;
        let before = self.circuit_at(&state, now);
        state.circuit = before.succeeded();
        let closed = state.circuit != before;
        if closed {
            state.revision += 1;
        }
        let relaxed = self.relax(&mut state, now);
        (relaxed || closed, closed.then_some(Turn::Closed))
    }

    /// Whether `mine` fits; the refusals come first, of the impossible and of everyone.
    fn check(
        &self,
        state: &State,
        mine: usize,
        ahead: usize,
        now: Instant,
    ) -> Result<bool, JobError> {
        let max = self.settings.max_requests as usize;
        if mine > max {
            return Err(JobError::uncorrectable(format!(
                "{mine} requests of '{}' were asked for at once and it takes {max} in {:?}: this can \
                 never fit, make fewer calls in one job",
                self.name(),
                self.settings.base_window
            )));
        }
        match self.circuit_at(state, now) {
            Circuit::Healthy => {}
            Circuit::Blocked(cooldown) if !cooldown.remaining(now).is_zero() => {
                let left = cooldown.remaining(now).as_millis().div_ceil(1_000);
                return Err(self.refuse(state, &format!("Cooldown is active for {left} s more")));
            }
            Circuit::Blocked(_) if ahead == 0 => {}
            Circuit::Blocked(_) | Circuit::Probing { .. } => {
                return Err(self.refuse(state, "a single probe finds out whether it has recovered"));
            }
        }
        let window = self.settings.window_at(state.throttle);
        Ok(state.counted(window, now) + mine + ahead <= max)
    }

    /// Drops the newest stamps, so that every deadline that was named stays.
    fn refund(
        &self,
        amounts: usize,
        now: Instant,
        is_the_probes: impl FnOnce(&State, Circuit) -> bool,
    ) {
        let mut state = self.state.lock();
        state.see(now);
        let left = state.stamps.len().saturating_sub(amounts);
        state.stamps.truncate(left);
        state.out = state.out.saturating_sub(amounts as u64);
        let circuit = self.circuit_at(&state, now);
        state.circuit = if is_the_probes(&state, circuit) {
            circuit.refunded()
        } else {
            circuit
        };
    }

    fn refuse(&self, state: &State, why: &str) -> JobError {
        let said = state.last_failure.as_deref().unwrap_or("nothing");
        JobError::uncorrectable(format!(
            "'{}' (nominally {} requests in {:?}) refuses requests because the service behind it \
             keeps failing. {why}. It last said: {said}. Go on without it, or try again later",
            self.name(),
            self.settings.max_requests,
            self.settings.base_window,
        ))
    }

    fn tell(&self, turn: Option<Turn>) {
        let Some(turn) = turn else { return };
        quietly(|| match turn {
            Turn::Opened(cooldown) => log::warn!(
                "{} is blocked for {cooldown:?}: its service keeps failing",
                self.name()
            ),
            Turn::Closed => log::info!("{} is open again", self.name()),
        });
    }
}

impl RateLimiter for ElasticWindow {
    type Amount = ();

    fn account_for(&self, (): &()) -> AccountKey {
        self.key.clone()
    }

    /// As of the latest instant that the window was asked about, since it reads no clock.
    fn describe(&self, _: &AccountKey) -> AccountStatus {
        let state = self.state.lock();
        let max = self.settings.max_requests;
        let window = self.settings.window_at(state.throttle);
        let (taken, circuit) = state.seen_at.map_or((0, CircuitState::Healthy), |now| {
            let circuit = self.circuit_at(&state, now).state();
            (state.counted(window, now), circuit)
        });
        let taken = u32::try_from(taken).unwrap_or(u32::MAX).min(max);
        let status = AccountStatus::new(
            AccountCategory::ElasticWindow,
            u64::from(max),
            u64::from(taken),
        )
        .summary(format!("{taken}/{max} requests in {window:?}"));
        let stretch = WHOLE.saturating_add(state.throttle);
        match circuit {
            CircuitState::Blocked => status.indicator("blocked"),
            CircuitState::Probing => status.indicator("probing"),
            CircuitState::Healthy if state.throttle > 0 => {
                status.indicator(format!("throttle:{}.{}x", stretch / WHOLE, stretch % WHOLE))
            }
            CircuitState::Healthy => status,
        }
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Time
    }

    fn fits(&self, mine: &[()], reserved_ahead: &[()], now: Instant) -> Result<bool, JobError> {
        let mut state = self.state.lock();
        state.see(now);
        self.check(&state, mine.len(), reserved_ahead.len(), now)
    }

    fn try_take(&self, mine: &[()], reserved_ahead: &[()], now: Instant) -> Result<bool, JobError> {
        let mut state = self.state.lock();
        state.see(now);
        if !self.check(&state, mine.len(), reserved_ahead.len(), now)? {
            return Ok(false);
        }
        let window = self.settings.window_at(state.throttle);
        state.drop_gone(window, now);
        // Two threads may have read their clocks in another order than they came here.
        let stamp = state.stamps.back().map_or(now, |last| now.max(*last));
        state.stamps.extend(mine.iter().map(|()| stamp));
        state.out = state.out.saturating_add(mine.len() as u64);
        state.circuit = self.circuit_at(&state, now).probed(now);
        Ok(true)
    }

    /// Without the instant of the take this may be anybody's: a probe is given up only when nothing else
    /// is out, and else expires.
    fn give(&self, amounts: &[()], now: Instant) {
        self.refund(amounts.len(), now, |state, _| state.out == 0);
    }

    fn give_taken(&self, amounts: &[()], taken: Instant, now: Instant) {
        self.refund(amounts.len(), now, |_, circuit| circuit.probed_at(taken));
    }

    fn earliest_fit(&self, mine: &[()], reserved_ahead: &[()], now: Instant) -> Option<Instant> {
        let state = self.state.lock();
        let max = self.settings.max_requests as usize;
        let need = mine.len().saturating_add(reserved_ahead.len());
        if need > max {
            return None;
        }
        let window = self.settings.window_at(state.throttle);
        let gone = state.gone(window, now);
        let deficit = (state.stamps.len() - gone + need).saturating_sub(max);
        let room = match deficit.checked_sub(1) {
            None => now,
            Some(last) => state.stamps.get(gone + last)?.checked_add(window)?,
        };
        match self.circuit_at(&state, now) {
            Circuit::Healthy => Some(room),
            Circuit::Blocked(cooldown) if reserved_ahead.is_empty() => {
                cooldown.end().map(|end| room.max(end))
            }
            Circuit::Blocked(_) | Circuit::Probing { .. } => None,
        }
    }

    /// While the circuit is not closed, the clock and the probe change who is refused.
    fn revision(&self) -> Option<u64> {
        let state = self.state.lock();
        (state.circuit == Circuit::Healthy).then_some(state.revision)
    }

    fn on_success(&self, now: Instant) {
        let (grew, turn) = self.succeed(now);
        if grew {
            self.key.capacity_grew();
        }
        self.tell(turn);
    }

    fn on_rate_limit_error(&self, failure: &UpstreamFailure, now: Instant) {
        let turn = self.fail(failure, now);
        self.tell(turn);
    }

    fn requires_http_connection(&self) -> bool {
        true
    }
}
