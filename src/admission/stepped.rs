//! The line alone, stepped by hand: no thread, no clock, no events.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::account::Wake;
use super::demand::Demand;
use super::line::{Arrival, Ask, Line, Ticket, Verdict};
use super::outbox::Outbox;
use crate::clock::WaitCell;
use crate::error::JobError;

/// The line of an admission, stepped by hand at instants of the caller's choice: for testing how limits
/// of one's own behave in a line, and for measuring it.
///
/// Each demand has a place, counted from 1 in the order of arrival. Nothing happens between the
/// calls; a limit that grows by itself is seen at the next [`walk`](Self::walk).
///
/// ```
/// use std::sync::Arc;
/// use std::time::Instant;
/// use nucleo_runtime::admission::{CountingGate, Demand};
/// use nucleo_runtime::testing::SteppedLine;
///
/// let gate = Arc::new(CountingGate::new("gate", 1)?);
/// let demand = || {
///     let mut demand = Demand::new();
///     demand.add(&gate, ());
///     demand
/// };
/// let now = Instant::now();
/// let mut line = SteppedLine::new();
/// let first = line.arrive(demand(), now)?;
/// let second = line.arrive(demand(), now)?;
/// assert!(line.holds(first) && !line.holds(second));
/// line.release(first, now)?;
/// assert_eq!(line.walk(now)?.granted, [second]);
/// # Ok::<(), nucleo_runtime::JobError>(())
/// ```
pub struct SteppedLine {
    line: Line,
    wake: Wake,
    /// Nobody sleeps in it.
    cell: Arc<WaitCell>,
    out: Outbox,
    /// By place.
    arrived: Vec<Arrived>,
    /// The places of those that the line has met, in their order: a demand for nothing is not asked.
    met: Vec<u64>,
    /// What the last walk did; kept for what it has allocated.
    walked: Walked,
}

struct Arrived {
    demand: Arc<Demand>,
    state: State,
    /// Unless it was answered at its arrival.
    ticket: Option<Arc<Ticket>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    Holds,
    Done,
}

/// What one walk of a [`SteppedLine`] did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Walked {
    /// The places that were granted, in the order of the grants.
    pub granted: Vec<u64>,
    /// The places that were refused, and how.
    pub refused: Vec<(u64, JobError)>,
    /// When the clock alone calls for the next walk.
    pub next: Option<Instant>,
}

fn index(place: u64) -> Option<usize> {
    usize::try_from(place).ok()?.checked_sub(1)
}

/// The accounts of a stepped line belong to it under a name that no admission has.
const OWNER: u64 = 0;

impl SteppedLine {
    /// An empty line, without a memory gate.
    #[must_use]
    pub fn new() -> Self {
        let line = Line::new(None);
        let growth = line.growth.clone();
        Self {
            line,
            wake: Wake::new(move || growth.note()),
            cell: WaitCell::new(),
            out: Outbox::default(),
            arrived: Vec::new(),
            met: Vec::new(),
            walked: Walked::default(),
        }
    }

    /// A demand arrives. Answers its place; [`holds`](Self::holds) says whether it was granted at once.
    ///
    /// # Errors
    /// The account's own when it refuses; `System` when an account serves an admission, or shares its
    /// name with another.
    pub fn arrive(
        &mut self,
        demand: impl Into<Arc<Demand>>,
        now: Instant,
    ) -> Result<u64, JobError> {
        let demand = demand.into();
        let place = self.arrived.len() as u64 + 1;
        if demand.is_empty() {
            self.arrived.push(Arrived {
                demand,
                state: State::Holds,
                ticket: None,
            });
            return Ok(place);
        }
        self.line.accounts.claim(OWNER, &self.wake, &demand)?;
        self.met.push(place);
        let ask = Ask {
            demand: Arc::clone(&demand),
            behind: None,
            cell: Arc::clone(&self.cell),
        };
        let arrival = self.line.arrive(ask, now, &mut self.out);
        // One that failed had its place as well.
        let arrival = arrival.unwrap_or_else(|it| Arrival::Refused(it.0));
        self.arrived.push(Arrived {
            demand,
            state: match &arrival {
                Arrival::Granted => State::Holds,
                Arrival::Parked(_) => State::Waits,
                Arrival::Refused(_) => State::Done,
            },
            ticket: match &arrival {
                Arrival::Parked(ticket) => Some(Arc::clone(ticket)),
                Arrival::Granted | Arrival::Refused(_) => None,
            },
        });
        match arrival {
            Arrival::Granted | Arrival::Parked(_) => Ok(place),
            Arrival::Refused(error) => Err(error),
        }
    }

    /// Walks the line once. Answers what it did, until the next walk.
    ///
    /// # Errors
    /// When an account fails to take back what an attempt had taken.
    pub fn walk(&mut self, now: Instant) -> Result<&Walked, JobError> {
        let Self {
            line,
            out,
            arrived,
            met,
            walked,
            ..
        } = self;
        walked.granted.clear();
        walked.refused.clear();
        walked.next = line.pass(now, out).map_err(|it| it.0)?;
        out.take_verdicts(|born, verdict| {
            let Some(&place) = index(born).and_then(|index| met.get(index)) else {
                return;
            };
            let at = index(place).and_then(|index| arrived.get_mut(index));
            let state = match verdict {
                Verdict::Granted(_) => {
                    walked.granted.push(place);
                    State::Holds
                }
                Verdict::Refused(error) => {
                    walked.refused.push((place, error.clone()));
                    State::Done
                }
            };
            if let Some(arrived) = at {
                arrived.state = state;
            }
        });
        drop(line.take_gone());
        Ok(walked)
    }

    /// Whether the demand at `place` was granted and has not been released.
    #[must_use]
    pub fn holds(&self, place: u64) -> bool {
        index(place)
            .and_then(|index| self.arrived.get(index))
            .is_some_and(|arrived| arrived.state == State::Holds)
    }

    /// Whether the demand at `place` waits.
    #[must_use]
    pub fn waits(&self, place: u64) -> bool {
        index(place)
            .and_then(|index| self.arrived.get(index))
            .is_some_and(|arrived| arrived.state == State::Waits)
    }

    /// How many demands wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.line.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives back what `place` holds for the duration of its work. Does nothing when it holds
    /// nothing.
    ///
    /// # Errors
    /// When an account fails to take it back.
    pub fn release(&mut self, place: u64, now: Instant) -> Result<(), JobError> {
        self.settle(place, false, now)
    }

    /// Gives back everything that `place` holds, metered amounts included, because its work never
    /// happened. Does nothing when it holds nothing.
    ///
    /// # Errors
    /// When an account fails to take it back.
    pub fn rollback(&mut self, place: u64, now: Instant) -> Result<(), JobError> {
        self.settle(place, true, now)
    }

    /// Takes the demand at `place` out of the line, as a cancelled job is. Answers whether it
    /// waited.
    pub fn withdraw(&mut self, place: u64, now: Instant) -> bool {
        let arrived = index(place).and_then(|index| self.arrived.get_mut(index));
        let Some(arrived) = arrived.filter(|arrived| arrived.state == State::Waits) else {
            return false;
        };
        let Some(ticket) = &arrived.ticket else {
            return false;
        };
        arrived.state = State::Done;
        let left = self.line.withdraw(ticket, now, &mut Outbox::default());
        drop(self.line.take_gone());
        left
    }

    fn settle(&mut self, place: u64, metered_too: bool, now: Instant) -> Result<(), JobError> {
        let arrived = index(place).and_then(|index| self.arrived.get_mut(index));
        let Some(arrived) = arrived.filter(|arrived| arrived.state == State::Holds) else {
            return Ok(());
        };
        arrived.state = State::Done;
        let demand = &arrived.demand;
        let entries = 0..demand.len();
        self.line
            .give_back(demand, entries, metered_too, None, now, &mut self.out)
            .map_err(|it| it.0)
    }
}

impl Default for SteppedLine {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SteppedLine {
    fn drop(&mut self) {
        self.line.accounts.release_all(OWNER);
    }
}

impl fmt::Debug for SteppedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteppedLine")
            .field("waiting", &self.len())
            .field("arrived", &self.arrived.len())
            .finish_non_exhaustive()
    }
}
