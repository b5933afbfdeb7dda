//! From accepted to started: two queues, three lines each, and marks under the cap (`RT`).
//!
//! # Invariants
//!
//! 1. A job that finds no thread stays in its line; a spawn that fails puts it back in front.
//! 2. Each line has a mark of its own, guards' above children's above roots', so a line that is
//!    blocked leaves threads to the ones before it: a running orchestrator's children find threads
//!    when roots no longer do.
//! 3. Within a line of the priority queue a higher priority goes first, and submission order among
//!    equals; in the FIFO queue submission order alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry::Entry;
use super::inner::Inner;
use super::{attempt, settle, shutdown, starvation};
use crate::clock::WaitCell;
use crate::sync::Mutex;
use crate::threads::{Seat, Threads};
use crate::unwind::contain;

/// A timeout up to this long goes to the priority queue (RT-2).
const PRIORITY_TIMEOUT: Duration = Duration::from_secs(5);
/// After a thread could not be started, the queue tries again this much later.
const SPAWN_RETRY: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Guard,
    Child,
    Root,
}

const CLASSES: [Class; 3] = [Class::Guard, Class::Child, Class::Root];

/// Where a queued job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    priority_queue: bool,
    class: Class,
    rank: Rank,
}

/// Ascending: the smallest goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    priority: std::cmp::Reverse<i32>,
    sequence: i64,
}

/// Up to how many live threads a job of each class may start one more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    root: usize,
    child: usize,
    guard: usize,
}

impl Marks {
    /// Of the threads that are left once `taken` are the runtime's own, roots may use three
    /// quarters, children fifteen sixteenths, guards all; each at least one.
    pub(super) fn new(cap: usize, taken: usize) -> Self {
        let free = cap.saturating_sub(taken);
        Self {
            root: taken + (free - free / 4).max(1),
            child: taken + (free - free / 16).max(1),
            guard: cap,
        }
    }

    fn of(self, class: Class) -> usize {
        match class {
            Class::Guard => self.guard,
            Class::Child => self.child,
            Class::Root => self.root,
        }
    }
}

/// Work that a queue's thread does besides starting jobs: submissions whose delay is over.
pub(super) type Errand = Box<dyn FnOnce(&Arc<Inner>) + Send>;

pub(super) struct Router {
    marks: Marks,
    priority: Queue,
    fifo: Queue,
    /// The shutdown that a thread has asked for which cannot wait for it, with its timeout.
    ending: Mutex<Option<Duration>>,
}

struct Queue {
    lines: Mutex<Lines>,
    /// Something to start, a thread that came back, or the end.
    cell: Arc<WaitCell>,
}

#[derive(Default)]
struct Lines {
    by_class: [BTreeMap<Rank, Arc<Entry>>; 3],
    errands: Vec<Errand>,
    submitted: i64,
    ahead: i64,
    stopped: bool,
}

impl Lines {
    fn line(&mut self, class: Class) -> &mut BTreeMap<Rank, Arc<Entry>> {
        match class {
            Class::Guard => &mut self.by_class[0],
            Class::Child => &mut self.by_class[1],
            Class::Root => &mut self.by_class[2],
        }
    }

    /// Where the next job stands in its line. No two have the same rank.
    fn rank(&mut self, entry: &Entry, priority_queue: bool) -> Rank {
        let (priority, sequence) = if entry.runs_at_once() {
            self.ahead -= 1;
            (i32::MAX, self.ahead)
        } else {
            self.submitted += 1;
            let priority = if priority_queue {
                entry.job().profile().priority
            } else {
                0
            };
            (priority, self.submitted)
        };
        Rank {
            priority: std::cmp::Reverse(priority),
            sequence,
        }
    }

    fn insert(&mut self, entry: &Arc<Entry>, place: Place) {
        entry.set_place(Some(place));
        self.line(place.class).insert(place.rank, Arc::clone(entry));
    }

    fn is_empty(&self) -> bool {
        self.by_class.iter().all(BTreeMap::is_empty)
    }
}

impl Router {
    pub(super) fn new(marks: Marks) -> Self {
        let queue = || Queue {
            lines: Mutex::default(),
            cell: WaitCell::new(),
        };
        Self {
            marks,
            priority: queue(),
            fifo: queue(),
            ending: Mutex::new(None),
        }
    }

    fn queue(&self, priority: bool) -> &Queue {
        if priority { &self.priority } else { &self.fifo }
    }

    /// Where the two queues' threads sleep.
    pub(super) fn cells(&self) -> [&Arc<WaitCell>; 2] {
        [&self.priority.cell, &self.fifo.cell]
    }

    /// Starts the job here when its line is empty and the mark allows it; else it joins its line.
    /// Answers false when the queues have stopped: the job is the caller's to settle.
    pub(super) fn route(&self, inner: &Arc<Inner>, entry: &Arc<Entry>) -> bool {
        let job = entry.job();
        let priority_queue = job
            .terms()
            .timeout
            .is_some_and(|timeout| timeout <= PRIORITY_TIMEOUT);
        let class = if entry.is_guard() {
            Class::Guard
        } else if job.is_root() {
            Class::Root
        } else {
            Class::Child
        };
        let queue = self.queue(priority_queue);
        let (seat, place) = {
            let mut lines = queue.lines.lock();
            if lines.stopped || inner.is_stopping() {
                return false;
            }
            // Its own also when it starts here: a spawn that fails puts it where it belongs.
            let place = Place {
                priority_queue,
                class,
                rank: lines.rank(entry, priority_queue),
            };
            let free = entry.runs_at_once() || lines.line(class).is_empty();
            let seat = free.then(|| inner.job_seat(self.marks.of(class))).flatten();
            if seat.is_none() {
                lines.insert(entry, place);
            }
            (seat, place)
        };
        match seat {
            Some(seat) => self.start(inner, Arc::clone(entry), seat, place),
            None => self.inserted(entry, queue),
        }
        true
    }

    /// An entry was put into a line, where its queue's thread finds it; unless it was cancelled on
    /// the way, by somebody who did not find it there.
    fn inserted(&self, entry: &Entry, queue: &Queue) {
        if entry.is_started() {
            self.remove(entry);
        }
        queue.cell.notify();
    }

    /// Takes a queued job out of its line.
    pub(super) fn remove(&self, entry: &Entry) {
        if let Some(place) = entry.place() {
            let mut lines = self.queue(place.priority_queue).lines.lock();
            let removed = lines.line(place.class).remove(&place.rank);
            drop(lines);
            drop(removed);
        }
    }

    /// Has the FIFO queue's thread do something. Answers it back when the queues have stopped.
    pub(super) fn run_errand(&self, errand: Errand) -> Result<(), Errand> {
        {
            let mut lines = self.fifo.lines.lock();
            if lines.stopped {
                return Err(errand);
            }
            lines.errands.push(errand);
        }
        self.fifo.cell.notify();
        Ok(())
    }

    /// Has the FIFO queue's thread run the shutdown that has begun. It is there as long as the dispatcher runs, and
    /// has nothing else to do any more.
    pub(super) fn run_end(&self, timeout: Duration) {
        *self.ending.lock() = Some(timeout);
        self.fifo.cell.notify();
    }

    /// Whether jobs wait for a thread and none of them can have one.
    pub(super) fn is_stuck(&self, threads: &Arc<Threads>) -> bool {
        let mut waiting = false;
        for queue in [&self.priority, &self.fifo] {
            let mut lines = queue.lines.lock();
            for class in CLASSES {
                if lines.line(class).is_empty() {
                    continue;
                }
                waiting = true;
                if threads.has_seat(self.marks.of(class)) {
                    drop(lines);
                    queue.cell.notify();
                    return false;
                }
            }
        }
        waiting
    }

    /// How many jobs wait for a thread.
    pub(super) fn len(&self) -> usize {
        [&self.priority, &self.fifo]
            .iter()
            .map(|queue| {
                let lines = queue.lines.lock();
                lines.by_class.iter().map(BTreeMap::len).sum::<usize>()
            })
            .sum()
    }

    /// Ends the queues; what is left in them is the caller's to settle.
    pub(super) fn stop(&self) {
        for queue in [&self.priority, &self.fifo] {
            let left = {
                let mut lines = queue.lines.lock();
                lines.stopped = true;
                (
                    std::mem::take(&mut lines.by_class),
                    std::mem::take(&mut lines.errands),
                )
            };
            queue.cell.notify();
            drop(left);
        }
    }

    /// Starts the job's thread. The entry goes there, so that it is not a queue's thread that drops
    /// the last reference to a job, and with it the user's values.
    fn start(&self, inner: &Arc<Inner>, entry: Arc<Entry>, seat: Seat, place: Place) {
        let kept = Arc::downgrade(&entry);
        let name = Arc::clone(&entry.job().profile().ids.job);
        // Not before the seat is back: a thread that is about to give it back is what somebody
        // who waits for one waits for.
        let seat = {
            let (inner, entry) = (Arc::clone(inner), Arc::clone(&entry));
            seat.then(move || inner.thread_gone(&entry))
        };
        let spawned = {
            let inner = Arc::clone(inner);
            Threads::spawn(seat, &name, move || attempt::run(&inner, &entry))
        };
        if let Err(error) = spawned {
            crate::aside::warn!("no thread for {name}: {error}; it waits");
            inner.note_failed_spawn();
            // Gone only when it was cancelled meanwhile.
            let Some(entry) = kept.upgrade() else { return };
            let queue = self.queue(place.priority_queue);
            let stopped = {
                let mut lines = queue.lines.lock();
                if !lines.stopped {
                    lines.insert(&entry, place);
                }
                lines.stopped
            };
            if stopped {
                settle::cancelled_by_shutdown(inner, &entry);
            }
            self.inserted(&entry, queue);
        }
    }

    /// A queue's own thread: starts what could not start at once, until the queues stop.
    pub(super) fn serve(&self, inner: &Arc<Inner>, priority: bool) {
        let queue = self.queue(priority);
        inner.threads().notify_when_freed(&queue.cell);
        let mut refused = false;
        loop {
            let seen = queue.cell.epoch();
            if !priority {
                let ending = self.ending.lock().take();
                if let Some(timeout) = ending {
                    shutdown::end(inner, timeout);
                    return;
                }
            }
            // Taken in a statement of its own: what runs an errand must not hold the lines.
            let errands = std::mem::take(&mut queue.lines.lock().errands);
            for errand in errands {
                if let Err(error) = contain("errand", || errand(inner)) {
                    crate::aside::error!("a queue's errand failed: {error}");
                }
            }
            let retry_at = inner
                .last_failed_spawn()
                .and_then(|failed| failed.checked_add(SPAWN_RETRY));
            match self.next(inner, queue, retry_at) {
                Next::Start(entry, seat, place) => {
                    refused = false;
                    self.start(inner, entry, seat, place);
                    continue;
                }
                Next::Stopped => return,
                Next::Idle => refused = false,
                // Once more after saying so: a thread that ended in between has not seen it.
                Next::NoThread if !refused => {
                    refused = true;
                    inner.threads().starve();
                    continue;
                }
                Next::NoThread => {
                    refused = false;
                    starvation::relieve(inner);
                }
            }
            let deadline = retry_at.filter(|at| *at > inner.clock().now());
            inner.clock().wait_until(&queue.cell, seen, deadline);
        }
    }

    fn next(&self, inner: &Arc<Inner>, queue: &Queue, retry_at: Option<Instant>) -> Next {
        let mut lines = queue.lines.lock();
        if lines.stopped {
            return Next::Stopped;
        }
        // A thread that a shutdown sets free is not for a job that the shutdown will cancel.
        if lines.is_empty() || inner.is_stopping() {
            return Next::Idle;
        }
        if retry_at.is_some_and(|at| at > inner.clock().now()) {
            return Next::Idle;
        }
        for class in CLASSES {
            if lines.line(class).is_empty() {
                continue;
            }
            let Some(seat) = inner.job_seat(self.marks.of(class)) else {
                continue;
            };
            if let Some((rank, entry)) = lines.line(class).pop_first() {
                entry.set_place(None);
                let place = Place {
                    priority_queue: std::ptr::eq(queue, &raw const self.priority),
                    class,
                    rank,
                };
                return Next::Start(entry, seat, place);
            }
        }
        Next::NoThread
    }
}

enum Next {
    Start(Arc<Entry>, Seat, Place),
    Idle,
    NoThread,
    Stopped,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatcher::JobDispatcher;
    use crate::dispatcher::inner::Phase;
    use crate::job::{JobRequirements, Workflow, job_fn};

    // case SUB-11
    #[test]
    fn priority_outranks_submission_and_submission_breaks_ties() {
        let rank = |priority, sequence| Rank {
            priority: std::cmp::Reverse(priority),
            sequence,
        };
        let mut order = [rank(1, 1), rank(9, 3), rank(1, 2), rank(9, 4)];
        order.sort();
        assert_eq!(order, [rank(9, 3), rank(9, 4), rank(1, 1), rank(1, 2)]);
    }

    #[test]
    fn jobs_whose_threads_do_not_start_stay_in_line_every_one() {
        // No system maps stacks of this size, so every spawn is refused.
        let dispatcher = JobDispatcher::builder()
            .stack_size(usize::MAX / 4)
            .build()
            .unwrap();
        dispatcher.inner().advance(&[Phase::Built], Phase::Started);
        let workflow = Workflow::new("alice", "test").unwrap();
        let submit = |requirements: fn() -> JobRequirements| {
            let job = job_fn(requirements, |_, _| Ok(()));
            dispatcher.submit(&workflow, job).unwrap()
        };
        let at_once = || JobRequirements::none().run_at_once();
        let jobs = [
            submit(at_once),
            submit(at_once),
            submit(JobRequirements::none),
            submit(at_once),
        ];
        assert_eq!(dispatcher.queue_len(), 4);
        assert_eq!(dispatcher.threads().live, dispatcher.threads().peak - 1);
        for (left, job) in (0..4).rev().zip(&jobs) {
            assert!(job.cancel("enough"));
            assert_eq!(dispatcher.queue_len(), left);
        }
    }

    #[test]
    fn marks_leave_threads_to_the_lines_before() {
        let marks = Marks::new(100, 20);
        assert_eq!((marks.root, marks.child, marks.guard), (80, 95, 100));
        let tight = Marks::new(8, 7);
        assert_eq!((tight.root, tight.child, tight.guard), (8, 8, 8));
    }
}
