//! One look at a demand: every account is asked, and all of it is taken if all of it fits.
//!
//! # Invariants
//!
//! 1. A look that does not end in a grant has taken nothing: what it took before an account
//!    declined goes back in the same look.
//! 2. An account that fails while it is asked refuses one demand; one that fails while it takes
//!    an amount back is a [`Defect`] of the whole.

use std::time::Instant;

use super::demand::{Demand, Entry};
use crate::error::{ErrorKind, JobError};
use crate::events::RejectReason;
#[cfg(nucleo_model)]
use crate::sync::fault::{self, Fault};
use crate::unwind::{contain, contain_result};

/// A defect inside a step: nothing that the line says can be trusted any more.
#[derive(Debug)]
pub(super) struct Defect(pub(super) JobError);

/// What one look at a demand found.
pub(super) enum Look {
    Granted,
    Short(Shortfall),
    Refused {
        /// Which entry's account refused.
        entry: usize,
        error: JobError,
        reason: RejectReason,
    },
}

/// Which entries of a demand are short.
pub(super) struct Shortfall {
    /// By index, with the instant at which the clock alone closes it; none when only an event can.
    pub(super) entries: Vec<(usize, Option<Instant>)>,
    /// The account said that it fits and then declined the take, so that what the look had taken
    /// went back. Nothing is known about the next who asks.
    pub(super) declined: bool,
}

impl Shortfall {
    /// When the clock alone closes all of it. With several metered shortfalls it is the latest that
    /// decides; one that only an event can close leaves no instant at all. One in the past is now.
    pub(super) fn instant(&self, now: Instant) -> Option<Instant> {
        self.entries.iter().try_fold(now, |latest, (_, instant)| {
            instant.map(|instant| latest.max(instant))
        })
    }

    /// The entries that are short, by index.
    pub(super) fn indices(&self) -> impl Iterator<Item = usize> + Clone {
        self.entries.iter().map(|(index, _)| *index)
    }
}

/// Asks every account of a demand, and takes all of it if all of it fits beside what `ahead` has
/// set aside.
///
/// Every entry is asked even after one was short, and an error wins over shortness, the first in
/// entry order: whether a demand is refused must not depend on who else is short.
pub(super) fn look(demand: &Demand, ahead: Option<&Demand>, now: Instant) -> Result<Look, Defect> {
    let short = match shortness(demand, ahead, now) {
        Ok(short) => short,
        Err(refusal) => return Ok(refusal),
    };
    if !short.is_empty() {
        return Ok(Look::Short(Shortfall {
            entries: short,
            declined: false,
        }));
    }
    for (index, entry) in demand.entries().iter().enumerate() {
        let reserved = reserved_on(ahead, &**entry);
        let declined = match ask(&**entry, |entry| entry.try_take(reserved, now)) {
            Ok(true) => continue,
            Ok(false) => None,
            Err(refused) => Some(refused),
        };
        // What this attempt took goes back before anybody else is asked.
        for taken in demand.entries().iter().take(index) {
            #[cfg(nucleo_model)]
            if fault::is_planted(Fault::SkippedRollback) {
                break;
            }
            give(&**taken, now)?;
        }
        return Ok(match declined {
            Some((error, reason)) => Look::Refused {
                entry: index,
                error,
                reason,
            },
            None => Look::Short(Shortfall {
                entries: vec![(index, earliest(&**entry, reserved, now))],
                declined: true,
            }),
        });
    }
    Ok(Look::Granted)
}

/// The entries of a demand that are short now, or how it is refused. Takes nothing.
pub(super) fn shortness(
    demand: &Demand,
    ahead: Option<&Demand>,
    now: Instant,
) -> Result<Vec<(usize, Option<Instant>)>, Look> {
    let mut short = Vec::new();
    let mut refusal = None;
    for (index, entry) in demand.entries().iter().enumerate() {
        match fits(&**entry, reserved_on(ahead, &**entry), now) {
            Ok(true) => {}
            Ok(false) => short.push((index, None)),
            Err((error, reason)) => {
                refusal.get_or_insert(Look::Refused {
                    entry: index,
                    error,
                    reason,
                });
            }
        }
    }
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    for (index, instant) in &mut short {
        if let Some(entry) = demand.entries().get(*index) {
            *instant = earliest(&**entry, reserved_on(ahead, &**entry), now);
        }
    }
    Ok(short)
}

/// What `ahead` has set aside on the account of this entry.
pub(super) fn reserved_on<'a>(
    ahead: Option<&'a Demand>,
    entry: &dyn Entry,
) -> Option<&'a dyn Entry> {
    ahead.and_then(|head| head.entry_on(entry.key()))
}

/// Whether an entry fits, or the refusal that its waiter gets.
pub(super) fn fits(
    entry: &dyn Entry,
    reserved: Option<&dyn Entry>,
    now: Instant,
) -> Result<bool, (JobError, RejectReason)> {
    ask(entry, |entry| entry.fits(reserved, now))
}

/// When the clock alone closes an entry's shortfall. An account that fails to say has no instant.
pub(super) fn earliest(
    entry: &dyn Entry,
    reserved: Option<&dyn Entry>,
    now: Instant,
) -> Option<Instant> {
    contain("limiter", || entry.earliest_fit(reserved, now)).unwrap_or(None)
}

/// How far the line may foresee the account of an entry. One that fails to say may not be.
pub(super) fn revision(entry: &dyn Entry) -> Option<u64> {
    contain("limiter", || entry.revision()).unwrap_or(None)
}

/// How many units an entry asks for. One that fails to say counts for the most there is.
pub(super) fn units(entry: &dyn Entry) -> u64 {
    contain("limiter", || entry.units()).unwrap_or(u64::MAX)
}

/// One question to an account: its answer, or the refusal that its waiter gets.
fn ask(
    entry: &dyn Entry,
    question: impl FnOnce(&dyn Entry) -> Result<bool, JobError>,
) -> Result<bool, (JobError, RejectReason)> {
    contain_result("limiter", || question(entry)).map_err(|error| match error.kind() {
        // A defect or a panic of the account.
        ErrorKind::System { .. } => (
            JobError::uncorrectable(format!(
                "the account '{}' failed while it was asked",
                entry.key().name()
            ))
            .with_source(error),
            RejectReason::Aborted,
        ),
        _ => (error, RejectReason::CircuitBlocked),
    })
}

/// An account that cannot take back what it gave out is a defect of the whole.
pub(super) fn give(entry: &dyn Entry, now: Instant) -> Result<(), Defect> {
    contain("limiter", || entry.give(now)).map_err(|error| {
        Defect(
            JobError::system(
                "admission",
                format!(
                    "the account '{}' failed to take back an amount",
                    entry.key().name()
                ),
            )
            .with_source(error),
        )
    })
}
