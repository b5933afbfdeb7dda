//! The circuit of an elastic window (EW-4): whether the service is asked at all.
//!
//! # Invariants
//!
//! 1. What the circuit is at an instant is a function of its state and that instant: a probe that
//!    is too old counts as given up from the instant on at which it became so, whoever asks.
//! 2. One probe is out at a time. It is given up by its own refund alone, which is told from others by the
//!    instant at which it was taken: a cooldown lies between that and any earlier take.
//! 3. A cooldown begins at a failure only; giving a probe up keeps it as it is.

use std::time::{Duration, Instant};

/// Where the circuit of an [`ElasticWindow`](super::ElasticWindow) is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CircuitState {
    /// The service is asked.
    Healthy,
    /// Nobody may ask it; once the cooldown is over the next head may, to find out.
    Blocked,
    /// One job finds out, and everyone else is refused.
    Probing,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Circuit {
    #[default]
    Healthy,
    Blocked(Cooldown),
    Probing {
        since: Instant,
        /// What it goes back to when there is no verdict.
        cooldown: Cooldown,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cooldown {
    since: Instant,
    length: Duration,
}

impl Cooldown {
    pub(super) fn remaining(self, now: Instant) -> Duration {
        self.length
            .saturating_sub(now.saturating_duration_since(self.since))
    }

    pub(super) fn end(self) -> Option<Instant> {
        self.since.checked_add(self.length)
    }
}

impl Circuit {
    /// The circuit as it is at `now`.
    pub(super) fn at(self, now: Instant, probe_timeout: Duration) -> Self {
        match self {
            Self::Probing { since, cooldown }
                if now.saturating_duration_since(since) >= probe_timeout =>
            {
                Self::Blocked(cooldown)
            }
            other => other,
        }
    }

    pub(super) fn state(self) -> CircuitState {
        match self {
            Self::Healthy => CircuitState::Healthy,
            Self::Blocked(_) => CircuitState::Blocked,
            Self::Probing { .. } => CircuitState::Probing,
        }
    }

    pub(super) fn remaining(self, now: Instant) -> Duration {
        match self {
            Self::Blocked(cooldown) => cooldown.remaining(now),
            Self::Healthy | Self::Probing { .. } => Duration::ZERO,
        }
    }

    pub(super) fn open(now: Instant, length: Duration) -> Self {
        Self::Blocked(Cooldown { since: now, length })
    }

    /// The probe goes out, if this is the time for one.
    pub(super) fn probed(self, now: Instant) -> Self {
        match self {
            Self::Blocked(cooldown) => Self::Probing {
                since: now,
                cooldown,
            },
            other => other,
        }
    }

    /// The service failed while it was probed: blocked again, for twice as long.
    pub(super) fn failed(self, now: Instant, max_cooldown: Duration) -> Self {
        match self {
            Self::Probing { cooldown, .. } => {
                Self::open(now, cooldown.length.saturating_mul(2).min(max_cooldown))
            }
            other => other,
        }
    }

    /// The service answered.
    pub(super) fn succeeded(self) -> Self {
        match self {
            Self::Probing { .. } => Self::Healthy,
            other => other,
        }
    }

    /// Whether the probe went out at this instant.
    pub(super) fn probed_at(self, taken: Instant) -> bool {
        matches!(self, Self::Probing { since, .. } if since == taken)
    }

    /// The probe never happened.
    pub(super) fn refunded(self) -> Self {
        match self {
            Self::Probing { cooldown, .. } => Self::Blocked(cooldown),
            other => other,
        }
    }
}
