//! The settings of an elastic window, each checked when it is built (EW-5).

use std::time::Duration;

use super::ElasticWindow;
use crate::error::JobError;
use crate::job::identity::simple_name;

/// One failure stretches the window by this much of itself, in tenths: 1.0.
const INCREMENT: u32 = 10;
/// What successes take off again, in tenths: 0.2.
const DECREMENT: u32 = 2;
/// How many successes that takes.
const SUCCESSES_PER_DECREASE: u32 = 3;
/// The largest throttle, in tenths: 9.0.
const MAX_THROTTLE: u32 = 90;
/// How long without a failure until every success counts, and for more.
const RECOVERY_AFTER: Duration = Duration::from_secs(5 * 60);
/// How many failures at the largest throttle open the circuit.
const FAILURES_TO_BLOCK: u32 = 3;
/// For how long the circuit is open at first.
const INITIAL_COOLDOWN: Duration = Duration::from_secs(30);
/// For how long it is open at most.
const MAX_COOLDOWN: Duration = Duration::from_secs(60 * 60);

/// Settings of an [`ElasticWindow`]; see [`ElasticWindow::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is built until `build` is called"]
pub struct ElasticWindowBuilder {
    pub(super) name: String,
    pub(super) max_requests: u32,
    pub(super) base_window: Duration,
    pub(super) increment: u32,
    pub(super) decrement: u32,
    pub(super) successes_per_decrease: u32,
    pub(super) max_throttle: u32,
    pub(super) recovery_after: Duration,
    pub(super) failures_to_block: u32,
    pub(super) initial_cooldown: Duration,
    pub(super) max_cooldown: Duration,
    pub(super) probe_timeout: Option<Duration>,
}

impl ElasticWindowBuilder {
    pub(super) fn new(name: String, max_requests: u32, base_window: Duration) -> Self {
        Self {
            name,
            max_requests,
            base_window,
            increment: INCREMENT,
            decrement: DECREMENT,
            successes_per_decrease: SUCCESSES_PER_DECREASE,
            max_throttle: MAX_THROTTLE,
            recovery_after: RECOVERY_AFTER,
            failures_to_block: FAILURES_TO_BLOCK,
            initial_cooldown: INITIAL_COOLDOWN,
            max_cooldown: MAX_COOLDOWN,
            probe_timeout: None,
        }
    }

    pub(super) fn for_service<T: ?Sized>(max_requests: u32, base_window: Duration) -> Self {
        let name = simple_name(std::any::type_name::<T>());
        let service = name
            .strip_suffix("RateLimiter")
            .filter(|service| !service.is_empty())
            .unwrap_or(name);
        Self::new(service.to_owned(), max_requests, base_window)
    }

    /// Its name, as events and reports show it.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// By how much one failure raises the throttle, in tenths. 10 (1.0) unless set; zero is refused.
    pub fn increment_tenths(mut self, tenths: u32) -> Self {
        self.increment = tenths;
        self
    }

    /// By how much successes lower the throttle, in tenths. 2 (0.2) unless set; zero is refused.
    /// After a quiet time it is two and a half times this, rounded down to a tenth.
    pub fn decrement_tenths(mut self, tenths: u32) -> Self {
        self.decrement = tenths;
        self
    }

    /// How many successes lower the throttle once. 3 unless set; zero is refused.
    pub fn successes_per_decrease(mut self, successes: u32) -> Self {
        self.successes_per_decrease = successes;
        self
    }

    /// The largest throttle, in tenths. 90 (9.0, a window of ten times its length) unless set. At
    /// zero the window never stretches, and the circuit opens at the failures alone.
    pub fn max_throttle_tenths(mut self, tenths: u32) -> Self {
        self.max_throttle = tenths;
        self
    }

    /// How long without a failure is a quiet time, in which every success lowers the throttle. 5
    /// minutes unless set; zero makes every time quiet.
    pub fn recovery_after(mut self, quiet: Duration) -> Self {
        self.recovery_after = quiet;
        self
    }

    /// How many failures in a row at the largest throttle open the circuit. 3 unless set; zero is
    /// refused.
    pub fn failures_to_block(mut self, failures: u32) -> Self {
        self.failures_to_block = failures;
        self
    }

    /// For how long the circuit is open at first. 30 s unless set; zero is refused.
    pub fn initial_cooldown(mut self, cooldown: Duration) -> Self {
        self.initial_cooldown = cooldown;
        self
    }

    /// For how long the circuit is open at most: every failed probe doubles the cooldown up to
    /// this. 1 h unless set; less than the initial cooldown is refused.
    pub fn max_cooldown(mut self, cooldown: Duration) -> Self {
        self.max_cooldown = cooldown;
        self
    }

    /// After how long a probe without a verdict is given up. The largest cooldown unless set; zero
    /// is refused.
    pub fn probe_timeout(mut self, timeout: Duration) -> Self {
        self.probe_timeout = Some(timeout);
        self
    }

    /// Builds the window, with nothing taken from it.
    ///
    /// # Errors
    /// `InvalidInput` naming the first setting that cannot work, its value and the rule.
    pub fn build(self) -> Result<ElasticWindow, JobError> {
        if self.name.trim().is_empty() {
            return Err(JobError::invalid_input(
                "name",
                self.name,
                "must not be blank",
            ));
        }
        for (field, figure) in [
            ("max_requests", self.max_requests),
            ("increment_tenths", self.increment),
            ("decrement_tenths", self.decrement),
            ("successes_per_decrease", self.successes_per_decrease),
            ("failures_to_block", self.failures_to_block),
        ] {
            if figure == 0 {
                return Err(JobError::invalid_input(field, figure, "must be positive"));
            }
        }
        for (field, time) in [
            ("base_window", self.base_window),
            ("initial_cooldown", self.initial_cooldown),
            ("probe_timeout", self.probe_expires_after()),
        ] {
            if time.is_zero() {
                return Err(JobError::invalid_input(
                    field,
                    format!("{time:?}"),
                    "must be positive",
                ));
            }
        }
        if self.max_cooldown < self.initial_cooldown {
            return Err(JobError::invalid_input(
                "max_cooldown",
                format!("{:?}", self.max_cooldown),
                format!(
                    "must be at least the initial cooldown of {:?}",
                    self.initial_cooldown
                ),
            ));
        }
        Ok(ElasticWindow::from_settings(self))
    }

    pub(super) fn probe_expires_after(&self) -> Duration {
        self.probe_timeout.unwrap_or(self.max_cooldown)
    }

    /// The window at a throttle. Past five centuries it stays as it is.
    pub(super) fn window_at(&self, throttle: u32) -> Duration {
        let tenths = u128::from(super::WHOLE) + u128::from(throttle);
        let nanos = self.base_window.as_nanos().saturating_mul(tenths) / u128::from(super::WHOLE);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// What a success takes off in a quiet time.
    pub(super) fn quiet_decrement(&self) -> u32 {
        self.decrement.saturating_mul(5) / 2
    }
}
