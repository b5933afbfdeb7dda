//! One look at a demand: every account is asked, and all of it is taken if all of it fits.
//!
//! # Invariants
//!
//! 1. A look that does not end in a grant has taken nothing: what it took before an account
//!    declined goes back in the same look.
//! 2. An account that fails while it is asked refuses one demand; one that fails while it takes
//!    an amount back is a [`Defect`] of the whole.

use std::time::Instant;

use smallvec::SmallVec;

use super::account::Replenishment;
use super::demand::{Demand, Entry, Filed};
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

/// Entries by index, each with the instant at which the clock alone closes its shortfall. Few
/// demands have more, and none of these is to cost an allocation in every walk.
pub(super) type ShortEntries = SmallVec<[(usize, Option<Instant>); 2]>;

/// Which entries of a demand are short.
pub(super) struct Shortfall {
    /// By index, with the instant at which the clock alone closes it; none when only an event can.
    pub(super) entries: ShortEntries,
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

/// What the questions of one look have found.
#[derive(Default)]
struct Asked {
    /// The entry that is asked.
    at: usize,
    short: ShortEntries,
    /// The first in entry order.
    refusal: Option<(usize, JobError)>,
}

impl Asked {
    #[inline]
    fn ask(&mut self, entries: &[Filed], ahead: Option<&Demand>, now: Instant) {
        for (index, entry) in entries.iter().enumerate() {
            self.at = index;
            self.note(entry.fits(reserved_on(ahead, entry.account()), now));
        }
    }

    /// Notes the answer of the entry that is asked, and answers whether it fits.
    #[inline]
    fn note(&mut self, answer: Result<bool, JobError>) -> bool {
        match answer {
            Ok(true) => return true,
            Ok(false) => self.short.push((self.at, None)),
            Err(error) => {
                self.refusal.get_or_insert((self.at, error));
            }
        }
        false
    }

    #[inline]
    fn all_fit(&self) -> bool {
        self.short.is_empty() && self.refusal.is_none()
    }

    /// The entries that were short, or the refusal. A panic ended the questions, and an error of an
    /// earlier account still wins.
    #[inline]
    fn end(
        mut self,
        panic: Option<JobError>,
        demand: &Demand,
        ahead: Option<&Demand>,
        now: Instant,
    ) -> Result<ShortEntries, (usize, JobError)> {
        if let Some(panic) = panic {
            self.refusal.get_or_insert((self.at, panic));
        }
        if let Some(refusal) = self.refusal {
            return Err(refusal);
        }
        for (index, until) in &mut self.short {
            if let Some(entry) = demand.entries().get(*index) {
                *until = earliest(&**entry, reserved_on(ahead, entry.account()), now);
            }
        }
        Ok(self.short)
    }
}

/// Asks every account of a demand, and takes all of it if all of it fits beside what `ahead` has
/// set aside.
///
/// Every entry is asked even after one was short, and an error wins over shortness, the first in
/// entry order: whether a demand is refused must not depend on who else is short.
pub(super) fn look(demand: &Demand, ahead: Option<&Demand>, now: Instant) -> Result<Look, Defect> {
    let mut asked = Asked::default();
    // How many were taken, once all were asked and fit.
    let mut taken = None;
    let end = contain_result("limiter", || {
        asked.ask(demand.entries(), ahead, now);
        if !asked.all_fit() {
            return Ok(false);
        }
        for (before, entry) in demand.entries().iter().enumerate() {
            taken = Some(before);
            if !entry.try_take(reserved_on(ahead, entry.account()), now)? {
                return Ok(false);
            }
        }
        Ok(true)
    });
    if matches!(end, Ok(true)) {
        return Ok(Look::Granted);
    }
    if let Some(taken) = taken {
        return unable_to_take(demand, taken, end.err(), ahead, now);
    }
    // An error here is a panic: what accounts answer is noted.
    Ok(match asked.end(end.err(), demand, ahead, now) {
        Err((index, error)) => refused(demand, index, error),
        Ok(entries) => Look::Short(Shortfall {
            entries,
            declined: false,
        }),
    })
}

/// An account said "fits", and then declined or failed after `taken` others were taken: they go back
/// before anybody else is asked.
#[cold]
#[inline(never)]
fn unable_to_take(
    demand: &Demand,
    taken: usize,
    error: Option<JobError>,
    ahead: Option<&Demand>,
    now: Instant,
) -> Result<Look, Defect> {
    for entry in demand.entries().iter().take(taken) {
        #[cfg(nucleo_model)]
        if fault::is_planted(Fault::SkippedRollback) {
            break;
        }
        give(&**entry, now)?;
    }
    Ok(match error {
        Some(error) => refused(demand, taken, error),
        None => {
            let entry = demand.entries().get(taken);
            let until = entry.and_then(|it| earliest(&**it, reserved_on(ahead, it.account()), now));
            Look::Short(Shortfall {
                entries: ShortEntries::from_iter([(taken, until)]),
                declined: true,
            })
        }
    })
}

/// The entries of a demand that are short now. Takes nothing.
///
/// # Errors
/// The entry whose account refuses, and how.
pub(super) fn shortness(
    demand: &Demand,
    ahead: Option<&Demand>,
    now: Instant,
) -> Result<ShortEntries, (usize, JobError)> {
    let mut asked = Asked::default();
    let panic = contain("limiter", || asked.ask(demand.entries(), ahead, now));
    asked.end(panic.err(), demand, ahead, now)
}

/// The refusal that a waiter gets for an account's error.
#[cold]
#[inline(never)]
fn refused(demand: &Demand, index: usize, error: JobError) -> Look {
    let entry = demand.entries().get(index);
    let (error, reason) = match error.kind() {
        // A defect or a panic of the account.
        ErrorKind::System { .. } => (
            JobError::uncorrectable(format!(
                "the account '{}' failed while it was asked",
                entry.map_or("?", |entry| entry.key().name())
            ))
            .with_source(error),
            RejectReason::Aborted,
        ),
        _ => (error, RejectReason::CircuitBlocked),
    };
    Look::Refused {
        entry: index,
        error,
        reason,
    }
}

/// What `ahead` has set aside on an account.
#[inline]
pub(super) fn reserved_on(ahead: Option<&Demand>, account: u64) -> Option<&dyn Entry> {
    ahead.and_then(|head| head.entry_on(account))
}

/// Whether an entry fits; none when its account refuses or fails.
pub(super) fn fits(entry: &dyn Entry, reserved: Option<&dyn Entry>, now: Instant) -> Option<bool> {
    contain_result("limiter", || entry.fits(reserved, now)).ok()
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

/// Whether the account of an entry says when its revision changes. One that fails to say does not.
pub(super) fn announces_revisions(entry: &dyn Entry) -> bool {
    contain("limiter", || entry.announces_revisions()).unwrap_or(false)
}

/// How many units an entry asks for. One that fails to say counts for the most there is.
pub(super) fn units(entry: &dyn Entry) -> u64 {
    contain("limiter", || entry.units()).unwrap_or(u64::MAX)
}

/// An account that cannot take back what it gave out is a defect of the whole.
fn give(entry: &dyn Entry, now: Instant) -> Result<(), Defect> {
    contain("limiter", || entry.give(now)).map_err(|error| defect(entry, GIVE, error))
}

/// Gives back the chosen entries that are held for the work, and if `metered_too` all of them.
/// Answers those that went back, and whether an account failed: one that fails to say how its
/// permits come back leaves open whether they are back.
pub(super) fn give_back(
    demand: &Demand,
    chosen: impl Iterator<Item = usize>,
    metered_too: bool,
    now: Instant,
) -> (SmallVec<[usize; 4]>, Result<(), Defect>) {
    let mut given = SmallVec::new();
    let (mut at, mut gives) = (0, false);
    let end = contain("limiter", || {
        for index in chosen {
            let Some(entry) = demand.entries().get(index) else {
                continue;
            };
            (at, gives) = (index, false);
            if metered_too || entry.replenishment() == Replenishment::Release {
                gives = true;
                entry.give(now);
                given.push(index);
            }
        }
    });
    let end = end.map_err(|error| match demand.entries().get(at) {
        Some(entry) => defect(&**entry, if gives { GIVE } else { SAY_HOW }, error),
        None => Defect(error),
    });
    (given, end)
}

const GIVE: &str = "failed to take back an amount";
const SAY_HOW: &str = "failed to say how its permits come back";

fn defect(entry: &dyn Entry, what: &str, error: JobError) -> Defect {
    let name = entry.key().name();
    Defect(JobError::system("admission", format!("the account '{name}' {what}")).with_source(error))
}
