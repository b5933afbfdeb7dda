//! The protocols under the model checker: the shipped code, with shuttle's locks and threads.
//!
//! Each run tries many interleavings of two or three threads, and the runtime's own beside them. A
//! thread that is left asleep is a deadlock to the checker, so a lost wake-up is found even where
//! nothing is asserted. For each protocol a fault is planted, and has to be found.

use std::sync::Arc;
use std::time::{Duration, Instant};

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner, thread};

use crate::admission::{
    AccountCategory, AccountKey, AccountStatus, CountingGate, Demand, RateLimiter, Replenishment,
};
use crate::clock::{Clock, ManualClock};
use crate::dispatcher::JobDispatcher;
use crate::error::JobError;
use crate::events::MessageBus;
use crate::job::{JobContext, JobHandle, JobRequirements, JobState, Workflow, job_fn};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::fault::{self, Fault};
use crate::testing::{self, AdmissionBench};

/// Only one test plants or runs at a time: the plant is the process's.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 512 * 1024;
    config.max_steps = shuttle::MaxSteps::FailAfter(200_000);
    config
}

fn explore(runs: usize, scenario: fn()) {
    Runner::new(RandomScheduler::new(runs), config()).run(scenario);
    Runner::new(PctScheduler::new(3, runs), config()).run(scenario);
}

/// Holds for every interleaving tried.
fn holds(runs: usize, scenario: fn()) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    explore(runs, scenario);
}

/// The planted fault breaks it in one of them.
fn finds(fault: Fault, runs: usize, scenario: fn()) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    fault::plant(Some(fault));
    let explored = std::panic::catch_unwind(|| explore(runs, scenario));
    fault::plant(None);
    assert!(explored.is_err(), "{fault:?} was not found");
}

fn context() -> JobContext {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    let bus = MessageBus::standalone(Arc::clone(&clock));
    testing::context(&clock, &bus, "user", None).unwrap()
}

/// Two that settle, one that waits.
fn handle_against_two_settlers() {
    let context = context();
    let job = context.core();
    let handle: JobHandle<u32> = JobHandle::new(Arc::clone(job));
    let settled = Arc::new(Mutex::new(0));
    let settlers: Vec<_> = [
        (JobState::Completed, Ok(7_u32)),
        (JobState::TimedOut, Err(JobError::timed_out(None))),
    ]
    .into_iter()
    .map(|(state, outcome)| {
        let (job, settled) = (Arc::clone(job), Arc::clone(&settled));
        thread::spawn(move || {
            if job.take_settlement() {
                *settled.lock() += 1;
                job.end(state, job.clock().wall()).unwrap();
                job.settle(outcome.map(|value| Arc::new(value) as _));
            }
        })
    })
    .collect();
    let first = handle.get().map(|value| *value);
    let second = handle.get().map(|value| *value);
    match (&first, &second) {
        (Ok(a), Ok(b)) => assert_eq!(a, b),
        (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string()),
        _ => panic!("two answers of one handle differ"),
    }
    assert_eq!(
        first.is_ok(),
        handle.snapshot().state() == JobState::Completed
    );
    for settler in settlers {
        settler.join().unwrap();
    }
    assert_eq!(*settled.lock(), 1);
}

#[test]
fn a_handle_answers_once_and_to_everybody_the_same() {
    holds(2_000, handle_against_two_settlers);
}

#[test]
fn a_settlement_that_wakes_nobody_is_found() {
    finds(Fault::SettleWakesNobody, 2_000, handle_against_two_settlers);
}

#[test]
fn a_token_that_everybody_gets_is_found() {
    finds(Fault::TokenForEverybody, 2_000, handle_against_two_settlers);
}

/// A whole dispatcher: a job that sleeps, and a cancel, its timeout and a shutdown that race.
fn cancel_against_timeout_against_shutdown() {
    let clock = ManualClock::new();
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(clock.clone()))
        .max_threads(16)
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "model").unwrap();
    let gate = Arc::new(CountingGate::new("gate", 1).unwrap());
    let needed = Arc::clone(&gate);
    let job = job_fn(
        move || JobRequirements::none().permit(&needed),
        |_, context| context.sleep(Duration::from_secs(3_600)).map(|()| 7),
    )
    .timeout(Some(Duration::from_secs(60)));
    let handle: JobHandle<u32> = dispatcher.submit(&workflow, job).unwrap();
    let cancelling = {
        let handle = handle.clone();
        thread::spawn(move || {
            handle.cancel("race");
        })
    };
    let ticking = {
        let clock = clock.clone();
        thread::spawn(move || clock.advance(Duration::from_secs(60)))
    };
    let error = handle.get().unwrap_err();
    assert!(error.is_cancelled() || error.is_timed_out(), "{error}");
    assert_eq!(gate.in_use(), 0);
    assert!(handle.snapshot().state().is_terminal());
    cancelling.join().unwrap();
    ticking.join().unwrap();
    let ending = {
        let clock = clock.clone();
        thread::spawn(move || {
            for _ in 0..3 {
                clock.advance(Duration::from_secs(40));
            }
        })
    };
    dispatcher.shutdown(Duration::from_secs(1)).unwrap();
    assert_eq!(dispatcher.job_count(), 0);
    ending.join().unwrap();
}

#[test]
fn a_cancel_a_timeout_and_a_completion_settle_a_job_once() {
    holds(300, cancel_against_timeout_against_shutdown);
}

#[test]
fn a_cancellation_that_wakes_nobody_is_found() {
    fn cancel_alone() {
        let context = context();
        let sleeping = {
            let context = context.clone();
            thread::spawn(move || context.sleep(Duration::from_secs(3_600)).unwrap_err())
        };
        testing::cancel(&context, "stop");
        assert!(sleeping.join().unwrap().is_cancelled());
    }
    holds(500, cancel_alone);
    finds(Fault::CancelWakesNobody, 500, cancel_alone);
}

/// A job that completes, one that is queued behind it for a permit, and a shutdown that races both.
/// With `in_no_time` the clock runs ahead of every thread, so that whoever has a grace may be left
/// behind; else it stands still, and nobody may be.
fn completion_against_shutdown(in_no_time: bool) {
    let clock = ManualClock::new();
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(clock.clone()))
        .max_threads(16)
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "model").unwrap();
    let gate = Arc::new(CountingGate::new("gate", 1).unwrap());
    let handles: Vec<JobHandle<u32>> = (0..2)
        .map(|number| {
            let gate = Arc::clone(&gate);
            let job = job_fn(
                move || JobRequirements::none().permit(&gate),
                move |_, _| Ok(number),
            );
            dispatcher.submit(&workflow, job).unwrap()
        })
        .collect();
    let ending = {
        let (dispatcher, clock) = (dispatcher.clone(), clock.clone());
        thread::spawn(move || {
            let ticking = in_no_time.then(|| {
                thread::spawn(move || {
                    for _ in 0..3 {
                        clock.advance(Duration::from_secs(40));
                    }
                })
            });
            let report = dispatcher.shutdown(Duration::from_secs(1)).unwrap();
            assert!(in_no_time || report.abandoned.is_empty(), "{report:?}");
            if let Some(ticking) = ticking {
                ticking.join().unwrap();
            }
        })
    };
    for (number, handle) in (0..).zip(&handles) {
        match handle.get() {
            Ok(value) => assert_eq!(*value, number),
            Err(error) if error.is_cancelled() => {}
            // Its work was over, and it was left behind before it had ended.
            Err(error) => {
                let text = error.to_string();
                assert!(in_no_time && text.contains("its end was stuck"), "{text}");
            }
        }
    }
    ending.join().unwrap();
    // Who was left behind ends later, and what it holds comes back when it does.
    while dispatcher.threads().live > 0 {
        thread::yield_now();
    }
    assert_eq!(gate.in_use(), 0);
    assert!(dispatcher.unresponsive().is_empty());
    assert!(handles.iter().all(JobHandle::is_settled));
}

#[test]
fn a_completion_and_a_shutdown_leave_no_handle_without_an_answer() {
    holds(300, || completion_against_shutdown(true));
}

#[test]
fn a_shutdown_whose_grace_does_not_end_leaves_nobody_behind() {
    holds(300, || completion_against_shutdown(false));
}

/// Alarms armed and disarmed against the thread that rings them.
#[test]
fn an_alarm_rings_or_is_taken_back_and_never_both() {
    use crate::dispatcher::model_timer;
    holds(1_000, model_timer::arm_against_ring);
}

/// Two waiters on two accounts, one of which gives up, and a holder that lets go.
fn waiters_against_release_and_cancel() {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    let bus = MessageBus::standalone(Arc::clone(&clock));
    let bench = Arc::new(AdmissionBench::start(Arc::clone(&clock), &bus).unwrap());
    let gates: Vec<_> = ["one", "other"]
        .iter()
        .map(|name| Arc::new(CountingGate::new(*name, 1).unwrap()))
        .collect();
    let demand = |gates: &[Arc<CountingGate>]| {
        let mut demand = Demand::new();
        for gate in gates {
            demand.add(gate, ());
        }
        demand
    };
    let jobs: Vec<_> = (0..3)
        .map(|_| testing::context(&clock, &bus, "user", None).unwrap())
        .collect();
    let holder = bench.admission().admit(demand(&gates), &jobs[0]).unwrap();
    let waiting: Vec<_> = jobs[1..]
        .iter()
        .map(|job| {
            let (bench, job, wanted) = (Arc::clone(&bench), job.clone(), demand(&gates));
            thread::spawn(move || bench.admission().admit(wanted, &job).map(drop))
        })
        .collect();
    let giving_up = {
        let job = jobs[1].clone();
        thread::spawn(move || {
            testing::cancel(&job, "not needed");
        })
    };
    holder.release();
    giving_up.join().unwrap();
    let mut answers = waiting.into_iter().map(|waiting| waiting.join().unwrap());
    if let Err(error) = answers.next().unwrap() {
        assert!(error.is_cancelled(), "{error}");
    }
    answers.next().unwrap().unwrap();
    for gate in &gates {
        assert_eq!(gate.in_use(), 0, "at rest every gate is whole");
    }
    assert_eq!(bench.admission().queue_len(), 0);
    bench.stop();
}

#[test]
fn whoever_fits_is_granted_and_whoever_gives_up_keeps_nothing() {
    holds(1_000, waiters_against_release_and_cancel);
}

#[test]
fn a_grant_that_wakes_nobody_is_found() {
    finds(
        Fault::GrantWakesNobody,
        1_000,
        waiters_against_release_and_cancel,
    );
}

#[test]
fn a_release_that_calls_nobody_is_found() {
    finds(
        Fault::ReleaseCallsNobody,
        1_000,
        waiters_against_release_and_cancel,
    );
}

/// A stop while one waits and one arrives.
#[test]
fn a_stop_leaves_nobody_waiting() {
    fn scenario() {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
        let bus = MessageBus::standalone(Arc::clone(&clock));
        let bench = Arc::new(AdmissionBench::start(Arc::clone(&clock), &bus).unwrap());
        let gate = Arc::new(CountingGate::new("gate", 1).unwrap());
        let job = |_| testing::context(&clock, &bus, "user", None).unwrap();
        let jobs: Vec<_> = (0..3).map(job).collect();
        let mut wanted = Demand::new();
        wanted.add(&gate, ());
        let holder = bench.admission().admit(wanted, &jobs[0]).unwrap();
        let waiting: Vec<_> = jobs[1..]
            .iter()
            .map(|job| {
                let (bench, job) = (Arc::clone(&bench), job.clone());
                let mut wanted = Demand::new();
                wanted.add(&gate, ());
                thread::spawn(move || bench.admission().admit(wanted, &job).map(drop))
            })
            .collect();
        bench.stop();
        holder.release();
        for waiting in waiting {
            if let Err(error) = waiting.join().unwrap() {
                assert!(error.is_cancelled(), "{error}");
            }
        }
        assert_eq!(gate.in_use(), 0);
    }
    holds(1_000, scenario);
}

/// An account that may be closed between its "fits" and its take, as a circuit is that another
/// thread opens.
struct Fickle {
    key: AccountKey,
    closed: AtomicBool,
    in_use: AtomicUsize,
}

impl RateLimiter for Fickle {
    type Amount = ();

    fn account_for(&self, (): &()) -> AccountKey {
        self.key.clone()
    }

    fn describe(&self, _: &AccountKey) -> AccountStatus {
        AccountStatus::new(AccountCategory::Semaphore, 1, 0)
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn fits(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        Ok(!self.closed.load(Ordering::SeqCst))
    }

    fn try_take(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        let takes = !self.closed.load(Ordering::SeqCst);
        self.in_use.fetch_add(usize::from(takes), Ordering::SeqCst);
        Ok(takes)
    }

    fn give(&self, _: &[()], _: Instant) {
        self.in_use.fetch_sub(1, Ordering::SeqCst);
    }

    fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
        None
    }
}

/// Two on a gate and an account that another thread closes and opens again.
fn waiters_against_an_account_that_declines() {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    let bus = MessageBus::standalone(Arc::clone(&clock));
    let bench = Arc::new(AdmissionBench::start(Arc::clone(&clock), &bus).unwrap());
    let gate = Arc::new(CountingGate::new("gate", 1).unwrap());
    let fickle = Arc::new(Fickle {
        key: AccountKey::new("fickle"),
        closed: AtomicBool::new(false),
        in_use: AtomicUsize::new(0),
    });
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let job = testing::context(&clock, &bus, "user", None).unwrap();
            let bench = Arc::clone(&bench);
            let mut wanted = Demand::new();
            wanted.add(&gate, ());
            wanted.add(&fickle, ());
            thread::spawn(move || bench.admission().admit(wanted, &job).map(drop))
        })
        .collect();
    fickle.closed.store(true, Ordering::SeqCst);
    fickle.closed.store(false, Ordering::SeqCst);
    fickle.key.capacity_grew();
    for waiting in waiting {
        waiting.join().unwrap().unwrap();
    }
    assert_eq!(gate.in_use(), 0, "at rest the gate is whole");
    assert_eq!(fickle.in_use.load(Ordering::SeqCst), 0);
    bench.stop();
}

#[test]
fn a_take_that_is_declined_leaves_nothing_taken() {
    holds(1_000, waiters_against_an_account_that_declines);
}

#[test]
fn a_rollback_that_is_skipped_is_found() {
    finds(
        Fault::SkippedRollback,
        1_000,
        waiters_against_an_account_that_declines,
    );
}

/// Three waiters over two accounts, and a cancel, a release and a stop that race.
fn waiters_against_cancel_release_and_stop() {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    let bus = MessageBus::standalone(Arc::clone(&clock));
    let bench = Arc::new(AdmissionBench::start(Arc::clone(&clock), &bus).unwrap());
    let gates: Vec<_> = ["one", "other"]
        .iter()
        .map(|name| Arc::new(CountingGate::new(*name, 1).unwrap()))
        .collect();
    let job = || testing::context(&clock, &bus, "user", None).unwrap();
    let demand = |wanted: &[usize]| {
        let mut demand = Demand::new();
        for gate in wanted {
            demand.add(&gates[*gate], ());
        }
        demand
    };
    let holder = bench.admission().admit(demand(&[0, 1]), &job()).unwrap();
    let jobs = [job(), job(), job()];
    let waiting: Vec<_> = [&[0, 1][..], &[0], &[1]]
        .into_iter()
        .zip(&jobs)
        .map(|(wanted, job)| {
            let (bench, job, wanted) = (Arc::clone(&bench), job.clone(), demand(wanted));
            thread::spawn(move || bench.admission().admit(wanted, &job).map(drop))
        })
        .collect();
    let giving_up = {
        let job = jobs[0].clone();
        thread::spawn(move || testing::cancel(&job, "not needed"))
    };
    let stopping = {
        let bench = Arc::clone(&bench);
        thread::spawn(move || bench.stop())
    };
    holder.release();
    for waiting in waiting {
        if let Err(error) = waiting.join().unwrap() {
            assert!(error.is_cancelled(), "{error}");
        }
    }
    giving_up.join().unwrap();
    stopping.join().unwrap();
    for gate in &gates {
        assert_eq!(gate.in_use(), 0, "at rest every gate is whole");
    }
    assert_eq!(bench.admission().queue_len(), 0);
}

#[test]
fn a_cancel_a_release_and_a_stop_answer_everyone_once() {
    holds(1_000, waiters_against_cancel_release_and_stop);
}

#[test]
fn a_verdict_that_wakes_nobody_is_found_under_a_stop_too() {
    finds(
        Fault::GrantWakesNobody,
        1_000,
        waiters_against_cancel_release_and_stop,
    );
}
