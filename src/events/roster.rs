//! Who is on the bus, and in which phase the bus is: the decisions, without a lock or a thread.
//!
//! # Invariants
//!
//! 1. A lane is in `active` until it leaves or the bus stops, then in `draining` until its thread
//!    has ended.
//! 2. No two lanes in `active` have the same observer (BUS-6).
//! 3. A list that is replaced is handed out, so that it is dropped outside of the lock.

use std::sync::Arc;

use super::lane::Lane;
use super::observer::{Observer, ObserverKey};
use super::subscription::SubscriptionId;

pub(super) type Lanes = Arc<[Arc<Lane>]>;

/// Where a bus is in its life. It only goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BusPhase {
    New,
    Running,
    Stopping,
    Stopped,
}

/// What makes an observer the same as another: where it lies, or its key.
#[derive(Debug)]
pub(super) struct Identity {
    /// Its consumer keeps the observer alive, so nobody else can lie there meanwhile.
    address: usize,
    key: Option<ObserverKey>,
}

impl Identity {
    pub(super) fn new(observer: &Arc<dyn Observer>, key: Option<ObserverKey>) -> Self {
        Self {
            address: Arc::as_ptr(observer).addr(),
            key,
        }
    }

    fn is(&self, other: &Self) -> bool {
        self.address == other.address || (self.key.is_some() && self.key == other.key)
    }
}

/// Why an observer cannot join.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Stopped,
    AlreadyIn(SubscriptionId),
}

#[derive(Debug)]
pub(super) struct Roster {
    phase: BusPhase,
    active: Lanes,
    draining: Vec<Arc<Lane>>,
}

impl Roster {
    pub(super) fn new() -> Self {
        Self {
            phase: BusPhase::New,
            active: Arc::default(),
            draining: Vec::new(),
        }
    }

    pub(super) fn phase(&self) -> BusPhase {
        self.phase
    }

    /// Those that events go to.
    pub(super) fn active(&self) -> Lanes {
        Arc::clone(&self.active)
    }

    /// Those that are to hear what is in their queues, and nothing more.
    pub(super) fn draining(&self) -> Vec<Arc<Lane>> {
        self.draining.clone()
    }

    /// The bits of the kinds that somebody wants now.
    pub(super) fn union(&self) -> u64 {
        match self.phase {
            BusPhase::Running => self
                .active
                .iter()
                .fold(0, |union, lane| union | lane.mask()),
            _ => 0,
        }
    }

    /// Whether an observer may join.
    pub(super) fn admits(&self, identity: &Identity) -> Result<(), Refusal> {
        if matches!(self.phase, BusPhase::Stopping | BusPhase::Stopped) {
            return Err(Refusal::Stopped);
        }
        match self.active.iter().find(|lane| lane.identity.is(identity)) {
            Some(lane) => Err(Refusal::AlreadyIn(lane.id)),
            None => Ok(()),
        }
    }

    /// Adds a lane; the list before comes back.
    pub(super) fn join(&mut self, lane: &Arc<Lane>) -> Result<Lanes, Refusal> {
        self.admits(&lane.identity)?;
        let lanes = self.active.iter().chain([lane]).cloned().collect();
        Ok(std::mem::replace(&mut self.active, lanes))
    }

    /// Moves a lane from the active to the draining ones; it and the list before come back.
    pub(super) fn leave(&mut self, id: SubscriptionId) -> Option<(Arc<Lane>, Lanes)> {
        let lane = Arc::clone(self.active.iter().find(|lane| lane.id == id)?);
        let others = self.active.iter().filter(|lane| lane.id != id);
        let others = others.cloned().collect();
        let before = std::mem::replace(&mut self.active, others);
        self.draining.push(Arc::clone(&lane));
        Some((lane, before))
    }

    /// Takes out a draining lane whose thread has ended.
    pub(super) fn forget(&mut self, id: SubscriptionId) -> Option<Arc<Lane>> {
        let at = self.draining.iter().position(|lane| lane.id == id)?;
        Some(self.draining.swap_remove(at))
    }

    /// New to running; the phase before comes back.
    pub(super) fn start(&mut self) -> BusPhase {
        let before = self.phase;
        if before == BusPhase::New {
            self.phase = BusPhase::Running;
        }
        before
    }

    /// Running to stopping, everyone draining; the list before comes back. In any other phase
    /// nothing changes, and the phase comes back.
    pub(super) fn stop(&mut self) -> Result<Lanes, BusPhase> {
        if self.phase != BusPhase::Running {
            return Err(self.phase);
        }
        self.phase = BusPhase::Stopping;
        let before = std::mem::take(&mut self.active);
        self.draining.extend(before.iter().cloned());
        Ok(before)
    }

    /// Stopping to stopped.
    pub(super) fn stopped(&mut self) {
        self.phase = BusPhase::Stopped;
    }
}
