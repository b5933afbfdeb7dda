//! The one place that starts threads, and the count that keeps them under the cap (`RT-3`, `RT-4`).
//!
//! Above the system's limit the standard library does not answer an error but aborts the process,
//! so the limit must never be tried out. Every thread of the runtime therefore takes a [`Seat`]
//! first and keeps it until it really ends.
//!
//! # Invariants
//!
//! 1. `live <= cap` at every instant.
//! 2. A seat that is given back wakes whoever was refused one since the last time: the refused
//!    side raises `starved` before its last try, the giving side lowers `live` before it reads
//!    `starved`, both sequentially consistent, so one of them sees the other.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::Arc;

use crate::clock::WaitCell;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Mutex, thread};

mod limits;
mod slot;

pub(crate) use limits::derived_cap;
pub(crate) use slot::Slot;

/// The stack of a job's thread unless the builder says otherwise: what the standard library takes.
pub(crate) const DEFAULT_STACK: usize = 2 * 1024 * 1024;

crate::sync::thread_local! {
    static RUNTIME_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread was started by a runtime.
pub(crate) fn is_runtime_thread() -> bool {
    RUNTIME_THREAD.with(Cell::get)
}

/// The runtime's threads: how many may be, how many are.
#[derive(Debug)]
pub(crate) struct Threads {
    cap: usize,
    stack_size: usize,
    live: AtomicUsize,
    /// Those of them that run no jobs and do not count against a mark: subscriptions.
    aside: AtomicUsize,
    /// The most that were ever alive at once.
    peak: AtomicUsize,
    starved: AtomicBool,
    #[cfg(test)]
    refuses: AtomicBool,
    waiting: Mutex<Vec<Arc<WaitCell>>>,
}

/// The right to one thread. Its drop gives it back; it neither blocks nor panics.
#[must_use = "a seat that is dropped is given back"]
pub(crate) struct Seat {
    threads: Arc<Threads>,
    /// Runs once the seat has been given back.
    then: Option<Box<dyn FnOnce() + Send>>,
    aside: bool,
}

impl Seat {
    /// Has `then` run once the seat has been given back, on the thread that gives it back.
    pub(crate) fn then(mut self, then: impl FnOnce() + Send + 'static) -> Self {
        self.then = Some(Box::new(then));
        self
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").finish_non_exhaustive()
    }
}

impl Threads {
    pub(crate) fn new(cap: usize, stack_size: usize) -> Arc<Self> {
        Arc::new(Self {
            cap,
            stack_size,
            live: AtomicUsize::new(0),
            aside: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            starved: AtomicBool::new(false),
            #[cfg(test)]
            refuses: AtomicBool::new(false),
            waiting: Mutex::default(),
        })
    }

    pub(crate) fn cap(&self) -> usize {
        self.cap
    }

    pub(crate) fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Ordering::SeqCst)
    }

    /// A seat for a subscription. It leaves one to the jobs, and does not count against their
    /// marks: observers cannot keep work from being done.
    pub(crate) fn try_seat_aside(self: &Arc<Self>) -> Option<Seat> {
        let mut seat = self.try_seat(self.cap.saturating_sub(1 + self.aside()))?;
        self.aside.fetch_add(1, Ordering::SeqCst);
        seat.aside = true;
        Some(seat)
    }

    /// How many live threads are set aside: those of subscriptions, also of such as have ended.
    pub(crate) fn aside(&self) -> usize {
        self.aside.load(Ordering::SeqCst)
    }

    /// A seat, if fewer than `mark` threads live that are not set aside, and fewer than the cap in
    /// all.
    pub(crate) fn try_seat(self: &Arc<Self>, mark: usize) -> Option<Seat> {
        let mark = mark.saturating_add(self.aside()).min(self.cap);
        let mut live = self.live.load(Ordering::SeqCst);
        loop {
            if live >= mark {
                return None;
            }
            match self.live.compare_exchange_weak(
                live,
                live + 1,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => {
                    self.peak.fetch_max(live + 1, Ordering::SeqCst);
                    return Some(Seat {
                        threads: Arc::clone(self),
                        then: None,
                        aside: false,
                    });
                }
                Err(now) => live = now,
            }
        }
    }

    /// Whether [`try_seat`](Self::try_seat) would find one now.
    pub(crate) fn has_seat(&self, mark: usize) -> bool {
        self.live() < mark.saturating_add(self.aside()).min(self.cap)
    }

    /// Registers a cell that is notified when a seat comes back after [`starve`](Self::starve).
    pub(crate) fn notify_when_freed(&self, cell: &Arc<WaitCell>) {
        self.waiting.lock().push(Arc::clone(cell));
    }

    /// Says that somebody found no seat. Call it, then try once more before sleeping.
    pub(crate) fn starve(&self) {
        self.starved.store(true, Ordering::SeqCst);
    }

    /// Starts a thread on a seat that is not to be lost when the system refuses the thread.
    ///
    /// # Errors
    /// The system's refusal, and the seat.
    pub(crate) fn spawn_reserved(
        seat: Seat,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), (io::Error, Option<Seat>)> {
        let stack_size = seat.threads.stack_size;
        if let Some(refusal) = seat.threads.planted_refusal() {
            return Err((refusal, Some(seat)));
        }
        // Of the two who know of the seat one is gone when it is looked for.
        let kept = Arc::new(Mutex::new(Some(seat)));
        let taken = Arc::clone(&kept);
        let spawned = start(stack_size, name, move || {
            let seat = taken.lock().take();
            body();
            drop(seat);
        });
        spawned
            .map(drop)
            .map_err(|error| (error, kept.lock().take()))
    }

    /// A refusal that a test has planted.
    #[cfg(test)]
    fn planted_refusal(&self) -> Option<io::Error> {
        let refuses = self.refuses.load(Ordering::SeqCst);
        refuses.then(|| io::Error::other("planted"))
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests plant it on one of them")]
    fn planted_refusal(&self) -> Option<io::Error> {
        None
    }

    /// Has the system refuse every thread from now on, or no more.
    #[cfg(test)]
    pub(crate) fn refuse_spawns(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }

    /// Starts a thread on `seat`, which it keeps until it ends.
    ///
    /// # Errors
    /// The system's refusal; the seat has been given back and `body` dropped.
    pub(crate) fn spawn(
        seat: Seat,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<thread::JoinHandle<()>> {
        let stack_size = seat.threads.stack_size;
        if let Some(refusal) = seat.threads.planted_refusal() {
            return Err(refusal);
        }
        start(stack_size, name, move || {
            body();
            drop(seat);
        })
    }
}

fn start(
    stack_size: usize,
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<thread::JoinHandle<()>> {
    thread::Builder::new()
        .name(thread_name(name))
        .stack_size(stack_size)
        .spawn(move || {
            RUNTIME_THREAD.with(|mark| mark.set(true));
            body();
        })
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.aside {
            self.threads.aside.fetch_sub(1, Ordering::SeqCst);
        }
        self.threads.live.fetch_sub(1, Ordering::SeqCst);
        if self.threads.starved.load(Ordering::SeqCst)
            && self.threads.starved.swap(false, Ordering::SeqCst)
        {
            let waiting = self.threads.waiting.lock().clone();
            for cell in waiting {
                cell.notify();
            }
        }
        if let Some(then) = self.then.take() {
            then();
        }
    }
}

/// What Linux keeps of a thread's name.
const NAME_BYTES: usize = 15;

/// `name` without NULs, cut at a character to what the system takes.
fn thread_name(name: &str) -> String {
    let name = if name.contains('\0') {
        Cow::Owned(name.replace('\0', ""))
    } else {
        Cow::Borrowed(name)
    };
    let mut end = name.len().min(NAME_BYTES);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    // One more than it takes, for the NUL that the system wants after it.
    let mut out = String::with_capacity(NAME_BYTES + 1);
    out.push_str(name.get(..end).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_seat_is_given_past_the_mark_or_the_cap() {
        let threads = Threads::new(3, DEFAULT_STACK);
        let _a = threads.try_seat(2).unwrap();
        let b = threads.try_seat(2).unwrap();
        assert!(threads.try_seat(2).is_none());
        let _c = threads.try_seat(usize::MAX).unwrap();
        assert!(threads.try_seat(usize::MAX).is_none());
        drop(b);
        assert_eq!(threads.live(), 2);
        assert_eq!(threads.peak(), 3);
        assert!(threads.try_seat(3).is_some());
    }

    #[test]
    fn a_seat_that_comes_back_wakes_the_starved_once() {
        let threads = Threads::new(1, DEFAULT_STACK);
        let cell = WaitCell::new();
        threads.notify_when_freed(&cell);
        let seat = threads.try_seat(1).unwrap();
        threads.starve();
        drop(seat);
        assert_eq!(cell.epoch(), 1);
        drop(threads.try_seat(1).unwrap());
        assert_eq!(cell.epoch(), 1);
    }

    #[test]
    fn a_thread_name_loses_its_nuls_and_is_cut_at_a_character() {
        assert_eq!(thread_name("a\0b"), "ab");
        assert_eq!(thread_name("aaaaaaaaaaaaaaä-tail"), "aaaaaaaaaaaaaa");
        assert_eq!(thread_name("Lookup-0123456789abcdef"), "Lookup-01234567");
    }

    #[test]
    fn a_thread_keeps_its_seat_until_it_ends() {
        let threads = Threads::new(1, DEFAULT_STACK);
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let seat = threads.try_seat(1).unwrap();
        let thread = Threads::spawn(seat, "t", move || {
            let _ = gate.recv();
        })
        .unwrap();
        assert_eq!(threads.live(), 1);
        release.send(()).unwrap();
        thread.join().unwrap();
        assert_eq!(threads.live(), 0);
    }
}
