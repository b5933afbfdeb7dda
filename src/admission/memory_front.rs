//! The memory gate in front of the line: it reads the source, and tells who is held on memory.
//!
//! Memory is no entry of a demand. Every demand that has entries meets it before any account and
//! takes from it last; what it holds, it tells as the account `memory`. A grant that it never held
//! makes no event there, for nothing was taken that could come back.
//!
//! # Invariants
//!
//! 1. Memory's line is the end of the line, from some place on: arrivals join it while there is one,
//!    the latch puts everybody into it from the first whom it refuses, and it lets go from its
//!    front. The gate counts who is in it.
//! 2. Whoever was let go by memory and then waits for an account is in that account's line alone:
//!    only the latch can hold it again.
//! 3. A source that cannot be read changes nothing: the last reading stands, and the first failure
//!    of a row is logged. A row ends with so many good readings in a row, twice as many each time: a
//!    source that comes and goes is one row, or a few. Before the first reading everyone goes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::account::AccountKey;
use super::line::Waiter;
use super::memory::{LatchTurn, MemoryGate, MemoryReading, MemoryStatus};
use super::memory_source::MemorySource;
use super::outbox::{Behind, Note, Outbox};
use crate::error::JobError;
use crate::events::{LimiterChange, RejectReason};
use crate::unwind::{contain, contain_result};

/// How many good readings in a row end the first row of failures.
const CALM: u32 = 2;
/// And how many any. After as many the next row counts as the first.
const LONG_CALM: u32 = 4_096;

/// What the memory gate of an admission is made of.
pub(crate) struct MemorySettings {
    pub(crate) source: Arc<dyn MemorySource>,
    /// MEM-9: whether one job goes every 30 seconds while nothing runs whose end could help.
    pub(crate) progress: bool,
}

/// The gate, if there is one. Without one nobody is ever held on memory.
#[derive(Default)]
pub(super) struct MemoryFront {
    gated: Option<Gated>,
}

struct Gated {
    gate: MemoryGate,
    source: Arc<dyn MemorySource>,
    /// Asked for once, before anything runs under the monitor's lock.
    name: String,
    key: AccountKey,
    fault: Option<Arc<str>>,
    /// Good readings since the last failure.
    calm: u32,
    /// How many of them end the present row.
    ends_at: u32,
}

impl MemoryFront {
    pub(super) fn new(settings: MemorySettings) -> Self {
        Self {
            gated: Some(Gated {
                gate: MemoryGate::new(settings.progress),
                name: contain("memory source", || settings.source.name().to_owned())
                    .unwrap_or_else(|_| "unnamed".to_owned()),
                source: settings.source,
                key: AccountKey::new("memory"),
                fault: None,
                calm: LONG_CALM,
                ends_at: CALM,
            }),
        }
    }

    pub(super) fn key(&self) -> Option<&AccountKey> {
        self.gated.as_ref().map(|gated| &gated.key)
    }

    /// One look: at each arrival, at the start of each pass and at each settlement.
    pub(super) fn look(&mut self, out: &mut Outbox) {
        let Some(gated) = &mut self.gated else { return };
        match gated.read() {
            Ok(reading) => {
                gated.fault = None;
                gated.calm = gated.calm.saturating_add(1);
                if let Some(turn) = gated.gate.look(reading) {
                    gated.log_turn(turn, out);
                }
            }
            Err(error) => gated.note_fault(&error, out),
        }
    }

    #[inline]
    pub(super) fn is_gated(&self) -> bool {
        self.gated.is_some()
    }

    /// Whether everybody goes on to the accounts. An arrival that does not joins memory's line.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.gated.as_ref().is_none_or(|gated| gated.gate.is_open())
    }

    /// Whether a waiter goes on to the accounts, in memory's line or not. Within one pass the answer
    /// changes only from yes to no: so from the first that is held on, everyone is.
    #[inline]
    pub(super) fn passes(&self, is_in_line: bool, now: Instant) -> bool {
        self.gated.as_ref().is_none_or(|gated| match is_in_line {
            true => gated.gate.fits(now),
            false => gated.gate.lets_pass(now),
        })
    }

    pub(super) fn earliest(&self, now: Instant) -> Option<Instant> {
        self.gated.as_ref()?.gate.earliest(now)
    }

    /// A waiter joins memory's line; told once, however often it does.
    pub(super) fn hold(&mut self, waiter: &mut Waiter, now: Instant, out: &mut Outbox) {
        let Some(gated) = &mut self.gated else { return };
        gated.gate.join(now);
        if waiter.memory_since.is_some() {
            return;
        }
        waiter.memory_since = Some(now);
        let behind = waiter.behind.as_ref();
        gated.tell(behind, LimiterChange::Held, None, Duration::ZERO, out);
    }

    /// Memory has let go of one of its line, which waits on for an account.
    pub(super) fn let_go(&mut self) {
        if let Some(gated) = &mut self.gated {
            gated.gate.leave();
        }
    }

    /// The accounts have granted: the release is stamped. Answers how long memory held it.
    pub(super) fn granted(
        &mut self,
        waiter: &Waiter,
        is_in_line: bool,
        now: Instant,
        out: &mut Outbox,
    ) -> Option<(Arc<str>, Duration)> {
        let gated = self.gated.as_mut()?;
        if gated.gate.take(now) {
            out.log(
                log::Level::Error,
                format!(
                    "memory lets one job go because nothing has run for 30 s that could free any: \
                     {} by '{}'. A source that never falls, as a resident set may not, needs \
                     another: the counting allocator",
                    gated.status(),
                    gated.name
                ),
            );
        }
        if is_in_line {
            gated.gate.leave();
        }
        let since = waiter.memory_since?;
        let wait = now.saturating_duration_since(since);
        let behind = waiter.behind.as_ref();
        gated.tell(behind, LimiterChange::GrantedFromHold, None, wait, out);
        Some((gated.key.name_shared(), wait))
    }

    /// A waiter leaves without a grant.
    pub(super) fn rejected(
        &mut self,
        waiter: &Waiter,
        is_in_line: bool,
        reason: RejectReason,
        now: Instant,
        out: &mut Outbox,
    ) {
        let Some(gated) = &mut self.gated else { return };
        if is_in_line {
            gated.gate.leave();
        }
        let Some(since) = waiter.memory_since else {
            return;
        };
        let wait = now.saturating_duration_since(since);
        let behind = waiter.behind.as_ref();
        gated.tell(behind, LimiterChange::Rejected, Some(reason), wait, out);
    }

    /// A job with entries has finished.
    pub(super) fn completed(&mut self, now: Instant) {
        if let Some(gated) = &mut self.gated {
            gated.gate.completed(now);
        }
    }

    pub(super) fn stop(&mut self) {
        if let Some(gated) = &mut self.gated {
            gated.gate.stop();
        }
    }

    pub(super) fn status(&self) -> Option<MemoryStatus> {
        self.gated.as_ref().map(Gated::status)
    }

    #[cfg(any(test, debug_assertions))]
    pub(super) fn held(&self) -> Option<usize> {
        self.gated.as_ref().map(|gated| gated.gate.held())
    }
}

impl Gated {
    fn read(&self) -> Result<MemoryReading, JobError> {
        let reading = contain_result("memory source", || {
            self.source
                .read()
                .map_err(|error| JobError::system("memory source", error.to_string()))
        })?;
        if reading.capacity == 0 {
            return Err(JobError::system(
                "memory source",
                "it says that there is no memory at all",
            ));
        }
        Ok(reading)
    }

    // What is seldom said is not inlined: whoever waits later keeps the stack of a look.

    #[cold]
    #[inline(never)]
    fn log_turn(&self, turn: LatchTurn, out: &mut Outbox) {
        let status = self.status();
        match turn {
            LatchTurn::Set => out.log(
                log::Level::Warn,
                format!("memory is critical, nothing more starts: {status}"),
            ),
            LatchTurn::Cleared => {
                out.log(log::Level::Info, format!("memory has recovered: {status}"))
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn note_fault(&mut self, error: &JobError, out: &mut Outbox) {
        let fault = error.to_string();
        let calm = std::mem::take(&mut self.calm);
        if calm >= LONG_CALM {
            self.ends_at = CALM / 2;
        }
        if calm >= self.ends_at {
            self.ends_at = (self.ends_at * 2).min(LONG_CALM);
            out.log(
                log::Level::Warn,
                format!(
                    "the memory source '{}' cannot be read, its last reading stands: {fault}",
                    self.name
                ),
            );
        }
        self.fault = Some(fault.into());
    }

    fn status(&self) -> MemoryStatus {
        MemoryStatus {
            fault: self.fault.clone(),
            ..self.gate.status()
        }
    }

    fn tell(
        &self,
        behind: Option<&Arc<Behind>>,
        change: LimiterChange,
        reason: Option<RejectReason>,
        wait: Duration,
        out: &mut Outbox,
    ) {
        let Some(behind) = behind else { return };
        out.note(Note {
            account: self.key.name_shared(),
            status: self.status().as_account(),
            amount: 1,
            waiters: self.gate.held(),
            change,
            reason,
            wait,
            behind: Arc::clone(behind),
        });
    }
}
