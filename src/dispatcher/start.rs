//! The start of a dispatcher: all of the runtime's threads, or none.
//!
//! # Invariants
//!
//! 1. No thread does anything before all of them have been started: a start that fails has changed
//!    nothing, and may be tried again.
//! 2. The phase is `Started` once everything serves, and not a moment before.

use std::io;
use std::sync::Arc;

use super::inner::{Inner, Phase};
use super::timeout;
use crate::aside;
use crate::clock::{Clock, Occupied, WaitCell};
use crate::error::JobError;
use crate::events::{Event, SchedulerEvent, SchedulerStarted};
use crate::sync::Mutex;
use crate::sync::thread::JoinHandle;
use crate::threads::{Seat, Threads};
use crate::unwind::contain;

/// What one of the runtime's threads does until the end.
type Serve = fn(&Arc<Inner>);

/// Where it sleeps.
type SleepsIn = fn(&Inner) -> &Arc<WaitCell>;

const SERVING: [(&str, SleepsIn, Serve); 3] = [
    (
        "nucleo-timer",
        |inner| inner.timer().cell(),
        |inner| {
            let clock = Arc::clone(inner.clock());
            inner.timer().serve(&*clock, |alarm| {
                // One alarm that goes wrong must not be the last.
                if let Err(error) = contain("timer", || timeout::ring(inner, alarm)) {
                    aside::error!("{error}");
                }
            });
        },
    ),
    (
        "nucleo-priority",
        |inner| inner.router().cells()[0],
        |inner| inner.router().serve(inner, true),
    ),
    (
        "nucleo-fifo",
        |inner| inner.router().cells()[1],
        |inner| inner.router().serve(inner, false),
    ),
];

/// Starts the threads.
pub(super) fn start(inner: &Arc<Inner>) -> Result<(), JobError> {
    // One start at a time; whoever comes second finds what became of the first.
    let _starting = inner.starting().lock();
    match inner.phase() {
        Phase::Built => {}
        Phase::Started | Phase::Draining => {
            crate::aside::warn!("the dispatcher was started before; this start does nothing");
            return Ok(());
        }
        Phase::Stopping | Phase::Stopped => return Err(shut_down()),
    }
    let gate = Arc::new(Gate {
        answer: Mutex::new(None),
        answered: WaitCell::new(),
    });
    let mut waiting = Vec::new();
    let started = SERVING
        .iter()
        .try_for_each(|&(name, sleeps_in, serve)| {
            let here = sleeps_in(inner).occupy();
            waiting.push(spawn(inner, &gate, name, (here, serve))?);
            Ok(())
        })
        .and_then(|()| {
            // Those that start now and not another one stay idle until the next start, or the end.
            let started = inner.start_reserves();
            started.map_err(|error| not_started("that ends what is stuck", error))
        })
        .and_then(|()| inner.admission().start(own_seat(inner)?));
    if let Err(error) = started {
        gate.open(false);
        for thread in waiting {
            // It serves nothing, so it ends at once, and its seat is free again.
            let _ = thread.join();
        }
        return Err(error);
    }
    inner.bus().start();
    if !inner.advance(&[Phase::Built], Phase::Started) {
        // Shut down meanwhile.
        gate.open(false);
        inner.admission().stop();
        let _ = inner.bus().stop();
        return Err(shut_down());
    }
    gate.open(true);
    inner.arm_stale_sweep();
    let at = inner.clock().wall();
    inner
        .bus()
        .publish(Event::Scheduler(SchedulerEvent::Started(
            SchedulerStarted { at },
        )));
    Ok(())
}

fn shut_down() -> JobError {
    JobError::illegal_state("the dispatcher has been shut down; build another")
}

/// A seat that was kept for one of these threads; after a start that failed, one like any other.
fn own_seat(inner: &Inner) -> Result<Seat, JobError> {
    inner
        .own_seat()
        .or_else(|| inner.threads().try_seat(usize::MAX))
        .ok_or_else(|| {
            JobError::system(
                "dispatcher",
                "no thread is left for the runtime's own: raise the thread cap",
            )
        })
}

fn spawn(
    inner: &Arc<Inner>,
    gate: &Arc<Gate>,
    name: &str,
    (here, serve): (Occupied, Serve),
) -> Result<JoinHandle<()>, JobError> {
    let seat = own_seat(inner)?;
    let (inner, gate) = (Arc::clone(inner), Arc::clone(gate));
    Threads::spawn(seat, name, move || {
        let _here = here;
        if gate.wait(&**inner.clock()) {
            let _relieved = inner.relieved();
            serve(&inner);
        }
    })
    .map_err(|error| not_started(name, error))
}

fn not_started(which: &str, error: io::Error) -> JobError {
    JobError::system(
        "dispatcher",
        format!("the thread {which} did not start: {error}"),
    )
    .with_source(error)
}

/// Where threads wait until it is known whether all of them have been started.
struct Gate {
    answer: Mutex<Option<bool>>,
    answered: Arc<WaitCell>,
}

impl Gate {
    fn open(&self, serve: bool) {
        *self.answer.lock() = Some(serve);
        self.answered.notify();
    }

    fn wait(&self, clock: &dyn Clock) -> bool {
        loop {
            let seen = self.answered.epoch();
            let answer = *self.answer.lock();
            match answer {
                Some(serve) => return serve,
                None => clock.wait_until(&self.answered, seen, None),
            }
        }
    }
}
