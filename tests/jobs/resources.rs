//! What an attempt holds, and how it goes back.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nucleo_runtime::admission::{CountingGate, Replenishment};
use nucleo_runtime::db::{CountingDbResourceProvider, DbManagedResource, DbResourceProvider};
use nucleo_runtime::events::{Event, EventKind, LifecycleEvent};
use nucleo_runtime::testing;
use nucleo_runtime::{
    DEFAULT_TIMEOUT, ErrorKind, Job, JobContext, JobError, JobHandle, JobRequirements,
    JobResources, JobState, job_fn,
};

use crate::hooked_database::HookedDatabase;
use crate::support::{Account, Fault, Host, Log, Recording, held};

type Wait = fn(&JobHandle<&'static str>) -> Result<(), JobError>;

/// A job that waits for another one while it holds.
struct WaitsWhileHolding {
    sibling: JobHandle<&'static str>,
    permit: Arc<CountingGate>,
    wait: Wait,
}

impl Job for WaitsWhileHolding {
    type Output = ();

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none().permit(&self.permit)
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        (self.wait)(&self.sibling)
    }
}

fn refused_wait(host: &Host, wait: Wait) -> (JobHandle<&'static str>, JobHandle<()>, JobError) {
    let sibling = host.submit(job_fn(JobRequirements::none, |_, _| Ok("done")));
    sibling.get().unwrap();
    let caller = host.submit(WaitsWhileHolding {
        sibling: sibling.clone(),
        permit: Arc::new(CountingGate::new("permit", 1).unwrap()),
        wait,
    });
    let error = caller.get().unwrap_err();
    (sibling, caller, error)
}

// case RES-01
// case RES-04
#[test]
fn a_job_that_holds_may_not_wait_even_for_a_job_that_is_over() {
    let host = Host::new();
    let line = line!() + 1;
    let (sibling, caller, error) = refused_wait(&host, |sibling| sibling.get().map(drop));
    assert!(
        matches!(error.kind(), ErrorKind::Deadlock { .. }),
        "{error:?}"
    );
    assert!(!error.is_correctable());
    let message = error.to_string();
    let named = [
        caller.job_id(),
        sibling.job_id(),
        "WaitsWhileHolding",
        "FnJob",
        host.workflow.id(),
        &format!("resources.rs:{line}"),
    ];
    for name in named {
        assert!(message.contains(name), "{name} is not in: {message}");
    }
}

// case RES-02
#[test]
fn nor_may_it_wait_for_a_while_or_look_or_wait_for_several() {
    let waits: [Wait; 4] = [
        |sibling| sibling.get_timeout(Duration::from_secs(1)).map(drop),
        |sibling| {
            sibling
                .get_deadline(Instant::now() + Duration::from_secs(1))
                .map(drop)
        },
        |sibling| sibling.try_get().map(drop),
        |sibling| JobHandle::join_all(std::slice::from_ref(sibling)).map(drop),
    ];
    for wait in waits {
        let host = Host::new();
        let (_, _, error) = refused_wait(&host, wait);
        assert!(matches!(error.kind(), ErrorKind::Deadlock { .. }));
    }
}

fn untouched(
    ran: &Arc<AtomicBool>,
) -> impl FnMut(&JobResources, &JobContext) -> Result<(), JobError> + use<> {
    let ran = Arc::clone(ran);
    move |_, _| {
        ran.store(true, Ordering::SeqCst);
        Ok(())
    }
}

// case RES-05
#[test]
fn an_acquisition_that_fails_rolls_the_whole_grant_back_once() {
    let host = Host::new();
    let log = Log::default();
    let ran = Arc::new(AtomicBool::new(false));
    let metered = Account::new("metered", Replenishment::Time, &log);
    let first = Arc::new(Recording::new("first", &log));
    let second = Arc::new(Recording::new("second", &log));
    let broken = Arc::new(Recording::new("broken", &log).with("acquire", Fault::Error));
    let gates = [first.admission(), second.admission(), broken.admission()];
    let job = job_fn(
        move || {
            JobRequirements::none()
                .limiter(&metered, ())
                .provider(&first)
                .provider(&second)
                .provider(&broken)
        },
        untouched(&ran),
    );
    let error = host.submit(job).get().unwrap_err();
    assert!(error.to_string().contains("acquire failed"), "{error}");
    assert!(!ran.load(Ordering::SeqCst));
    assert_eq!(
        log.lines(),
        [
            "metered.take",
            "first.acquire",
            "second.acquire",
            "broken.acquire",
            "second.close",
            "first.close",
            "metered.give",
        ]
    );
    assert_eq!(gates.map(|gate| gate.in_use()), [0, 0, 0]);
}

// case RES-06
#[test]
fn what_was_held_comes_back_and_what_was_spent_does_not() {
    let host = Host::new();
    let log = Log::default();
    let held = Account::new("held", Replenishment::Release, &log);
    let spent = Account::new("spent", Replenishment::Time, &log);
    let job = job_fn(
        move || {
            JobRequirements::none()
                .limiter(&held, ())
                .limiter(&spent, ())
        },
        |_, _| Ok(()),
    );
    host.submit(job).get().unwrap();
    let mut lines = log.lines();
    lines.retain(|line| !line.ends_with("success"));
    assert_eq!(lines, ["held.take", "spent.take", "held.give"]);
}

// case RES-07
#[test]
fn a_stuck_commit_is_ended_by_an_abort_and_everything_returns_once() {
    let host = Host::new();
    let log = Log::default();
    let (committing, commits) = mpsc::channel();
    let (abort, aborted) = mpsc::channel();
    let aborted = Mutex::new(aborted);
    let [left, closed, severed] = [log.clone(), log.clone(), log.clone()];
    // Its commit returns when it is aborted.
    let stuck = Arc::new(HookedDatabase {
        on_commit: Box::new(move || {
            committing.send(()).unwrap();
            aborted.lock().unwrap().recv().unwrap();
            left.note("commit left");
        }),
        on_close: Box::new(move || closed.note("close")),
        on_abort: Box::new(move || {
            severed.note("abort");
            abort.send(()).unwrap();
        }),
        ..HookedDatabase::default()
    });
    let needed = Arc::clone(&stuck);
    let (kept_by_job, job_dropped) = mpsc::channel::<()>();
    let handle = host.submit(job_fn(
        move || JobRequirements::none().provider(&needed).transaction(),
        move |_, _| {
            let _ = &kept_by_job;
            Ok(())
        },
    ));
    commits.recv().unwrap();
    assert_eq!(stuck.gate.in_use(), 1);
    host.clock.advance(DEFAULT_TIMEOUT);
    testing::quiesce(&host.dispatcher);
    host.clock.advance(Duration::from_secs(30));
    assert!(handle.get().is_err(), "its end did not come by itself");
    assert_eq!(stuck.gate.in_use(), 0);
    // The job's own thread leaves too, and its close is one too many.
    assert!(job_dropped.recv().is_err());
    assert_eq!(stuck.gate.in_use(), 0);
    let mut lines = log.lines();
    assert_eq!(lines.remove(0), "abort");
    assert!(lines.contains(&"commit left".to_owned()), "{lines:?}");
    assert!(lines.contains(&"close".to_owned()), "{lines:?}");
    let needed = Arc::clone(&stuck);
    let next = host.submit(job_fn(
        move || JobRequirements::none().provider(&needed),
        |_, _| Ok(()),
    ));
    next.get().unwrap();
    assert_eq!(stuck.gate.in_use(), 0);
}

// case RES-09
#[test]
fn a_declared_provider_is_there_and_no_other() {
    let host = Host::new();
    let log = Log::default();
    let (declared, other) = (
        Arc::new(Recording::new("declared", &log)),
        Arc::new(Recording::new("other", &log)),
    );
    let needed = Arc::clone(&declared);
    let twin = Arc::new(CountingDbResourceProvider::new("declared", 1).unwrap());
    let job = job_fn(
        move || JobRequirements::none().provider(&needed),
        move |resources, _| {
            assert!(resources.has_database());
            assert_eq!(resources.get(&declared)?.provider(), "declared");
            for missing in [
                resources.get(&other).map(drop).unwrap_err(),
                resources.get(&twin).map(drop).unwrap_err(),
            ] {
                assert!(matches!(missing.kind(), ErrorKind::IllegalState { .. }));
                assert!(missing.to_string().contains("was not declared"));
            }
            Ok(())
        },
    );
    host.submit(job).get().unwrap();
    let without = host.submit(job_fn(JobRequirements::none, |resources, _| {
        Ok(resources.has_database())
    }));
    assert!(!*without.get().unwrap());
}

fn in_transaction(
    host: &Host,
    providers: &[&Arc<Recording>],
    answer: Result<(), JobError>,
) -> Result<(), JobError> {
    let providers: Vec<_> = providers.iter().map(|p| Arc::clone(p)).collect();
    let mut answer = Some(answer);
    let job = job_fn(
        move || {
            providers
                .iter()
                .fold(JobRequirements::none(), JobRequirements::provider)
                .transaction()
        },
        move |_, _| answer.take().unwrap(),
    );
    host.submit(job).get().map(|_| ())
}

fn of<'l>(log: &'l [String], name: &str) -> Vec<&'l str> {
    log.iter()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('.'))
        .collect()
}

// case RES-10
#[test]
fn a_commit_that_fails_leaves_what_committed_and_rolls_back_the_rest() {
    let host = Host::new();
    let log = Log::default();
    let first = Arc::new(Recording::new("first", &log));
    let second = Arc::new(Recording::new("second", &log).with("commit", Fault::Error));
    let third = Arc::new(Recording::new("third", &log));
    let error = in_transaction(&host, &[&first, &second, &third], Ok(())).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Uncorrectable { .. }));
    assert!(error.to_string().contains("'second'"), "{error}");
    let cause = error.source().unwrap().to_string();
    assert!(cause.contains("commit failed"), "{cause}");
    assert!(error.attached().is_empty());
    let lines = log.lines();
    assert_eq!(
        of(&lines, "first"),
        ["acquire", "begin", "commit", "await", "close"]
    );
    assert_eq!(
        of(&lines, "second"),
        ["acquire", "begin", "commit", "rollback", "close"]
    );
    assert_eq!(
        of(&lines, "third"),
        ["acquire", "begin", "rollback", "close"]
    );
}

// case RES-11
#[test]
fn a_rollback_that_fails_after_a_failed_commit_is_attached() {
    let host = Host::new();
    let log = Log::default();
    let first = Arc::new(Recording::new("first", &log).with("commit", Fault::Error));
    let second = Arc::new(Recording::new("second", &log).with("rollback", Fault::Error));
    let error = in_transaction(&host, &[&first, &second], Ok(())).unwrap_err();
    assert!(
        error
            .source()
            .unwrap()
            .to_string()
            .contains("commit failed")
    );
    let [rollback] = error.attached() else {
        panic!("attached: {:?}", error.attached())
    };
    assert!(rollback.to_string().contains("rollback failed"));
    assert_eq!(
        of(&log.lines(), "second"),
        ["acquire", "begin", "rollback", "close"]
    );
}

// case RES-12
#[test]
fn what_did_not_commit_is_rolled_back_in_reverse() {
    let host = Host::new();
    let log = Log::default();
    let [a, b, c] = ["a", "b", "c"].map(|name| Arc::new(Recording::new(name, &log)));
    in_transaction(&host, &[&a, &b, &c], Err(JobError::correctable("no"))).unwrap_err();
    let mut lines = log.lines();
    lines.retain(|line| line.ends_with("rollback"));
    assert_eq!(lines, ["c.rollback", "b.rollback", "a.rollback"]);
}

// case RES-14
#[test]
fn a_close_that_fails_keeps_no_other_from_closing_and_no_permit() {
    for (answer, expected) in [
        (Ok(()), None),
        (
            Err(JobError::correctable("work failed")),
            Some("work failed"),
        ),
    ] {
        let host = Host::new();
        let log = Log::default();
        let broken = Arc::new(Recording::new("broken", &log).with("close", Fault::Error));
        let fine = Arc::new(Recording::new("fine", &log));
        let ended = in_transaction(&host, &[&broken, &fine], answer);
        assert_eq!(of(&log.lines(), "broken").last(), Some(&"close"));
        assert_eq!(of(&log.lines(), "fine").last(), Some(&"close"));
        assert_eq!(broken.admission().in_use(), 0);
        assert_eq!(fine.admission().in_use(), 0);
        // What the work came to stands; a failure carries the close's along.
        match (ended, expected) {
            (Ok(()), None) => {}
            (Err(error), Some(text)) => {
                assert_eq!(error.to_string(), text);
                let [close] = error.attached() else {
                    panic!("attached: {:?}", error.attached())
                };
                let message = close.to_string();
                assert!(
                    message.contains("failed to close the database handle"),
                    "{message}"
                );
                assert!(close.source().unwrap().to_string().contains("close failed"));
            }
            (ended, _) => panic!("{ended:?}"),
        }
    }
}

// case DB-05
#[test]
fn the_counting_provider_bounds_the_use_of_the_applications_own_pool() {
    struct Pool {
        out: Mutex<(usize, usize)>,
    }
    impl Pool {
        fn run(&self) {
            {
                let mut out = self.out.lock().unwrap();
                out.0 += 1;
                out.1 = out.1.max(out.0);
            }
            thread::yield_now();
            self.out.lock().unwrap().0 -= 1;
        }
    }
    let host = Host::new();
    let provider = Arc::new(CountingDbResourceProvider::new("pool", 2).unwrap());
    let pool = Arc::new(Pool {
        out: Mutex::new((0, 0)),
    });
    let jobs: Vec<_> = (0..6)
        .map(|_| {
            let (provider, pool) = (Arc::clone(&provider), Arc::clone(&pool));
            host.submit(job_fn(
                move || JobRequirements::none().provider(&provider),
                move |_, _| {
                    pool.run();
                    pool.run();
                    Ok(2)
                },
            ))
        })
        .collect();
    let ran: i32 = JobHandle::join_all(&jobs)
        .unwrap()
        .iter()
        .map(|n| **n)
        .sum();
    assert_eq!(ran, 12);
    let (out, most) = *pool.out.lock().unwrap();
    assert_eq!(out, 0);
    assert!(most <= 2, "{most} at once");
    assert_eq!(provider.admission().in_use(), 0);
}

#[test]
fn a_provider_or_a_slot_that_is_declared_twice_is_refused() {
    let host = Host::new();
    let log = Log::default();
    let orders = Arc::new(Recording::new("db", &log));
    let job = job_fn(
        move || JobRequirements::none().provider(&orders).provider(&orders),
        |_, _| Ok(()),
    );
    let error = host.submit(job).get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::InvalidInput { .. }));
    assert!(log.lines().is_empty());
}

#[test]
fn a_job_parked_when_the_dispatcher_shuts_down_was_cancelled() {
    let host = Host::new();
    let permit = Arc::new(CountingGate::new("permit", 1).unwrap());
    let needing = |permit: &Arc<CountingGate>| {
        let permit = Arc::clone(permit);
        move || JobRequirements::none().permit(&permit)
    };
    let (holder, hold) = held(needing(&permit));
    let holder = host.submit(holder);
    hold.wait_until_running();
    let parked = host.submit(job_fn(needing(&permit), |_, _| Ok(())));
    while host.dispatcher.admission().queue_len() == 0 {
        thread::yield_now();
    }
    let dispatcher = host.dispatcher.clone();
    let shutdown = thread::spawn(move || dispatcher.shutdown(Duration::from_secs(60)));
    assert!(parked.get().unwrap_err().is_cancelled());
    assert_eq!(parked.snapshot().state(), JobState::Cancelled);
    hold.release();
    assert_eq!(*holder.get().unwrap(), "held");
    shutdown.join().unwrap().unwrap();
    let told = host.events.events_of(parked.job_id());
    let cancelled = told
        .iter()
        .find(|event| event.kind() == EventKind::JobCancelled)
        .unwrap();
    let Event::Lifecycle(LifecycleEvent::Cancelled(cancelled)) = &**cancelled else {
        panic!("{cancelled:?}")
    };
    assert_eq!(cancelled.message, "Cancelled by shutdown");
    assert_eq!(permit.in_use(), 0);
}

#[test]
fn a_job_that_finds_out_itself_that_its_time_is_over_is_closed_all_the_same() {
    for _ in 0..50 {
        let host = Host::new();
        let log = Log::default();
        let orders = Arc::new(Recording::new("db", &log));
        let (release, released) = mpsc::channel::<()>();
        let clock = host.clock.clone();
        let job = job_fn(
            move || JobRequirements::none().provider(&orders),
            move |_, context| {
                // Before the timer gets to it, or after: it makes no difference.
                clock.advance(DEFAULT_TIMEOUT);
                assert!(context.is_timed_out());
                released.recv().unwrap();
                Ok(())
            },
        );
        let handle = host.submit(job);
        while !log.lines().contains(&"db.close".to_owned()) {
            thread::yield_now();
        }
        release.send(()).unwrap();
        assert!(handle.get().unwrap_err().is_timed_out());
    }
}

/// Phase one closes handles, so that the work finds out. What is held beside them goes back when
/// nobody uses it any more: at the work's end, or with phase two.
#[test]
fn a_timeout_gives_back_no_permit_while_the_work_goes_on() {
    for ends_in_its_grace in [true, false] {
        let host = Host::new();
        let permit = Arc::new(CountingGate::new("permit", 1).unwrap());
        let needs = |permit: &Arc<CountingGate>| {
            let permit = Arc::clone(permit);
            move || JobRequirements::none().permit(&permit).http_connection()
        };
        let (job, hold) = held(needs(&permit));
        let timed = host.submit(job);
        hold.wait_until_running();
        let next = host.submit(job_fn(needs(&permit), |_, _| Ok(())));
        while host.dispatcher.admission().queue_len() == 0 {
            thread::yield_now();
        }

        host.clock.advance(DEFAULT_TIMEOUT);
        testing::quiesce(&host.dispatcher);
        assert_eq!(timed.snapshot().state(), JobState::TimedOut);
        assert!(timed.try_get().unwrap().is_none(), "it still runs");
        assert_eq!(permit.in_use(), 1, "and uses what it was granted");
        assert!(next.try_get().unwrap().is_none());
        assert_eq!(host.dispatcher.admission().queue_len(), 1);

        if ends_in_its_grace {
            hold.release();
        } else {
            host.clock.advance(Duration::from_secs(30));
        }
        assert!(timed.get().unwrap_err().is_timed_out());
        next.get().unwrap();
        assert_eq!(permit.in_use(), 0);
        if !ends_in_its_grace {
            hold.release();
        }
    }
}

#[test]
fn callbacks_of_a_timeout_run_also_when_another_jobs_callback_is_stuck() {
    let host = Host::with(|builder| builder.max_threads(16));
    let (release, released) = mpsc::channel::<()>();
    let (told, heard) = mpsc::channel();
    let (starting, started) = mpsc::channel();
    let (done, end) = mpsc::channel::<()>();
    let end = Arc::new(Mutex::new(end));
    let submit = |callback: Box<dyn FnOnce() + Send>| {
        let (starting, end) = (starting.clone(), Arc::clone(&end));
        let mut callback = Some(callback);
        let handle = host.submit(job_fn(JobRequirements::none, move |_, context| {
            context.on_timeout(callback.take().unwrap());
            starting.send(()).unwrap();
            let _ = end.lock().unwrap().recv();
            Ok(())
        }));
        started.recv().unwrap();
        handle
    };
    let first = submit(Box::new(move || released.recv().unwrap()));
    let second = submit(Box::new(move || told.send("told").unwrap()));
    host.clock.advance(DEFAULT_TIMEOUT);
    testing::quiesce(&host.dispatcher);
    assert!(
        heard.try_recv().is_err(),
        "there is one thread for callbacks"
    );
    release.send(()).unwrap();
    assert_eq!(heard.recv(), Ok("told"));
    drop(done);
    for handle in [first, second] {
        assert!(handle.get().unwrap_err().is_timed_out());
    }
}

// case RES-17
#[test]
fn the_http_pool_is_one_gate_of_a_thousand_places_unless_set() {
    for (set, places) in [(None, 1_000), (Some(7), 7)] {
        let host = Host::with(|builder| match set {
            None => builder,
            Some(connections) => builder.http_connections(connections),
        });
        let job = job_fn(|| JobRequirements::none().http_connection(), |_, _| Ok(()));
        host.submit(job).get().unwrap();
        let event = host
            .events
            .wait_until(|event| matches!(event, Event::Limiter(_)));
        let Event::Limiter(limiter) = &*event else {
            unreachable!("it was waited for")
        };
        assert_eq!((&*limiter.account, limiter.capacity), ("http", places));
    }
}
