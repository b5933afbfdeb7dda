//! One event on its way to the subscriptions: whom it finds, and what did not find room.
//!
//! # Invariants
//!
//! 1. The list in `kept` is the roster's if its edition is the one that a publisher reads.
//! 2. Everybody only tries `kept`'s lock, so nobody waits for it, and whoever publishes while
//!    publishing goes through a list of its own.
//! 3. No event is dropped for the last time under it, and no list.

use std::ops::Deref;
use std::sync::Arc;

use super::bus::Inner;
use super::event::Event;
use super::kind::EventKind;
use super::lane::{Lane, Refused};
use super::roster::Lanes;
use crate::job::snapshot::JobProfile;
use crate::sync::MutexGuard;
use crate::sync::atomic::Ordering;
use crate::unwind::{catch, write};

/// What is to be logged about subscriptions that had no room for an event.
#[derive(Debug, Default)]
#[must_use = "dropped events are to be logged, once no lock is held"]
pub(crate) struct Overflow {
    lines: Vec<String>,
}

impl Overflow {
    #[inline]
    pub(crate) fn log(self) {
        if !self.lines.is_empty() {
            self.log_lines();
        }
    }

    #[cold]
    fn log_lines(self) {
        for line in self.lines {
            write(|| log::error!("{line}"));
        }
    }

    pub(crate) fn into_lines(self) -> Vec<String> {
        self.lines
    }
}

/// It may hold the last reference to a value of the user's.
pub(super) fn drop_unheard<T>(event: T) {
    let _ = catch(move || drop(event));
}

/// The list of lanes of one edition, kept for the next publisher.
#[derive(Debug, Default)]
pub(super) struct Kept {
    edition: u64,
    lanes: Lanes,
}

/// A list of lanes that a publisher may go through.
pub(super) enum Found<'a> {
    Kept(MutexGuard<'a, Kept>),
    Own(Lanes),
}

impl Deref for Found<'_> {
    type Target = [Arc<Lane>];

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Kept(kept) => &kept.lanes,
            Self::Own(lanes) => lanes,
        }
    }
}

/// The lanes as a publisher found them, and the first that wants the event.
pub(super) struct Wanted<'a> {
    lanes: Found<'a>,
    first: usize,
    /// Of the event's kind.
    bit: u64,
}

impl Inner {
    /// Lets go of a list that is no longer the roster's, if no publisher goes through it now: then
    /// the next one does.
    pub(super) fn forget_kept(&self) {
        let before = self
            .kept
            .try_lock()
            .map(|mut kept| std::mem::take(&mut *kept));
        drop(before);
    }

    fn lanes(&self) -> Found<'_> {
        let edition = self.edition.load(Ordering::Acquire);
        match self.kept.try_lock() {
            Some(kept) if kept.edition == edition => Found::Kept(kept),
            Some(kept) => self.renewed(kept),
            None => Found::Own(self.roster.read().active()),
        }
    }

    #[cold]
    fn renewed<'a>(&'a self, mut kept: MutexGuard<'a, Kept>) -> Found<'a> {
        let now = {
            let roster = self.roster.read();
            Kept {
                // Changes under the roster's lock only.
                edition: self.edition.load(Ordering::Relaxed),
                lanes: roster.active(),
            }
        };
        let before = std::mem::replace(&mut *kept, now);
        if before.lanes.is_empty() {
            return Found::Kept(kept);
        }
        // The list of before may be the last that has its lanes: it is dropped under no lock.
        drop(kept);
        drop(before);
        match self.kept.try_lock() {
            Some(kept) if kept.edition == self.edition.load(Ordering::Acquire) => Found::Kept(kept),
            _ => Found::Own(self.roster.read().active()),
        }
    }

    pub(super) fn wanted_of(&self, event: &Event) -> Option<Wanted<'_>> {
        self.wanted(event.kind(), event.subject())
    }

    pub(super) fn wanted(
        &self,
        kind: EventKind,
        subject: Option<&JobProfile>,
    ) -> Option<Wanted<'_>> {
        let bit = kind.bit();
        if self.union.load(Ordering::Acquire) & bit == 0 {
            return None;
        }
        let lanes = self.lanes();
        let first = lanes.iter().position(|lane| lane.may_want(bit, subject))?;
        Some(Wanted { lanes, first, bit })
    }

    pub(super) fn deliver(&self, wanted: Wanted<'_>, event: Arc<Event>) -> Overflow {
        let mut overflow = Overflow::default();
        let bit = wanted.bit;
        let alone = matches!(wanted.lanes, Found::Kept(_));
        let lanes = &wanted.lanes[wanted.first..];
        let Some(last) = lanes.iter().rposition(|lane| lane.wants(bit, &event)) else {
            drop(wanted);
            drop_unheard(event);
            return overflow;
        };
        for lane in &lanes[..last] {
            if lane.wants(bit, &event)
                && let Err(refused) = lane.push(Arc::clone(&event), alone)
            {
                self.note(lane, &refused, &mut overflow);
            }
        }
        // The last one gets the publisher's own reference: one count less to move.
        if let Err(refused) = lanes[last].push(event, alone) {
            self.note(&lanes[last], &refused, &mut overflow);
            let event = refused.into_event();
            drop(wanted);
            drop_unheard(event);
        }
        overflow
    }

    #[cold]
    fn note(&self, lane: &Lane, refused: &Refused, overflow: &mut Overflow) {
        if let Refused::Full(_) = refused {
            overflow.lines.extend(lane.report(&*self.clock));
        }
    }
}
