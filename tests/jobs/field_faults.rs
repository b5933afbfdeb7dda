//! Faults that users of other systems met, set up here.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use nucleo_runtime::admission::{CountingGate, TokenBucket, TokenBudget};
use nucleo_runtime::db::{CountingDbResourceProvider, DbResourceProvider};
use nucleo_runtime::{
    Clock, ErrorKind, Job, JobDispatcher, JobError, JobHandle, JobRequirements, JobState, doer_fn,
    job_fn,
};

use crate::support::{Fault, Host, Log, Recording, held};

fn gate(name: &str, capacity: u32) -> Arc<CountingGate> {
    Arc::new(CountingGate::new(name, capacity).unwrap())
}

fn needing(gate: &Arc<CountingGate>) -> impl Fn() -> JobRequirements + Send + use<> {
    let gate = Arc::clone(gate);
    move || JobRequirements::none().permit(&gate)
}

// case F5
#[test]
fn a_limit_that_could_not_be_enforced_is_an_error() {
    // Nothing can be declared but in `requirements`, and what is declared there is held:
    let (host, other) = (Host::new(), Host::new());
    let limit = gate("limit", 1);
    let seen = Arc::clone(&limit);
    let inside = host.submit(job_fn(needing(&limit), move |_, _| Ok(seen.in_use())));
    assert_eq!(*inside.get().unwrap(), 1);

    // in two dispatchers it would be enforced by neither;
    let error = other
        .submit(job_fn(needing(&limit), |_, _| Ok(())))
        .get()
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::System { .. }));
    // a second limit of the same name would be told apart by nobody;
    let error = host
        .submit(job_fn(needing(&gate("limit", 9)), |_, _| Ok(())))
        .get()
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::System { .. }));
    // and a limit of nothing, which would let nobody pass, cannot be made.
    assert!(CountingGate::new("none", 0).is_err());
    assert!(
        JobDispatcher::builder()
            .http_connections(0)
            .build()
            .is_err()
    );
}

// case F8
#[test]
fn jobs_cancelled_under_load_some_twice_leave_the_level_exact() {
    let host = Host::new();
    let bucket = TokenBucket::new(
        "tokens",
        TokenBudget::new(1_000, 1_000_000),
        host.clock.now(),
    );
    let bucket = Arc::new(bucket.unwrap());
    let spent = Arc::new(AtomicUsize::new(0));
    let jobs: Vec<_> = (0..400)
        .map(|_| {
            let (bucket, spent) = (Arc::clone(&bucket), Arc::clone(&spent));
            host.submit(job_fn(
                move || JobRequirements::none().limiter(&bucket, 10),
                move |_, _| {
                    spent.fetch_add(10, Ordering::SeqCst);
                    Ok(())
                },
            ))
        })
        .collect();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for job in jobs.iter().step_by(2) {
                    job.cancel("half of them");
                }
            });
        }
    });
    // Who is left fills the level; who was cancelled took nothing, or ran.
    for job in &jobs {
        if job.snapshot().state() != JobState::Cancelled {
            continue;
        }
        assert!(job.get().unwrap_err().is_cancelled());
    }
    for job in &jobs {
        job.cancel("the rest");
        let _ = job.get();
    }
    let ran = u32::try_from(spent.load(Ordering::SeqCst)).unwrap();
    assert!(ran <= 1_000);
    assert_eq!(bucket.status(host.clock.now()).tokens, 1_000 - ran);
    assert_eq!(host.dispatcher.admission().queue_len(), 0);
}

// case F16
#[test]
fn parents_that_hold_and_wait_for_children_are_refused_and_orchestrators_hold_nothing() {
    let host = Host::new();
    let slots = gate("slots", 3);
    // As many as there are slots, each waiting for a job that needs one: refused, not frozen.
    let start = Arc::new(Barrier::new(3));
    let parents: Vec<_> = (0..3)
        .map(|_| {
            let start = Arc::clone(&start);
            let (give, given) = mpsc::channel::<JobHandle<()>>();
            let parent = host.submit(job_fn(needing(&slots), move |_, _| {
                start.wait();
                let child = given.recv().unwrap();
                child.get().map(drop)
            }));
            let child = host.submit(job_fn(needing(&slots), |_, _| Ok(())));
            give.send(child.clone()).unwrap();
            (parent, child)
        })
        .collect();
    for (parent, child) in parents {
        let error = parent.get().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Deadlock { .. }));
        child.get().unwrap();
    }
    // The same with orchestrators, ten times as many as there are slots.
    let orchestrators: Vec<_> = (0..30)
        .map(|_| {
            let slots = Arc::clone(&slots);
            host.submit(doer_fn(move |context| {
                let children = (0..3)
                    .map(|_| context.submit(job_fn(needing(&slots), |_, _| Ok(1))))
                    .collect::<Result<Vec<_>, _>>()?;
                let answers = JobHandle::join_all(&children)?;
                Ok(answers.iter().map(|n| **n).sum::<i32>())
            }))
        })
        .collect();
    for orchestrator in orchestrators {
        assert_eq!(*orchestrator.get().unwrap(), 3);
    }
    assert_eq!(slots.in_use(), 0);
}

// case F17
#[test]
fn a_cancel_or_panic_right_after_the_grant_costs_no_permit() {
    let host = Host::new();
    let permit = gate("permit", 1);
    for _ in 0..300 {
        // One holds, one is parked; the release that grants races the cancel.
        let (holder, hold) = held(needing(&permit));
        let holder = host.submit(holder);
        hold.wait_until_running();
        let parked = host.submit(job_fn(needing(&permit), |_, _| Ok(())));
        let start = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                parked.cancel("race");
            });
            start.wait();
            hold.release();
        });
        holder.get().unwrap();
        let _ = parked.get();
        assert_eq!(permit.in_use(), 0);
    }
    let log = Log::default();
    for operation in ["acquire", "begin", "commit", "close"] {
        let broken = Arc::new(Recording::new("db", &log).with(operation, Fault::Panic));
        let connections = broken.admission();
        let host = Host::new();
        let permit = gate("permit", 1);
        let needed = Arc::clone(&permit);
        let job = job_fn(
            move || {
                JobRequirements::none()
                    .permit(&needed)
                    .provider(&broken)
                    .transaction()
            },
            |_, _| Ok(()),
        );
        let ended = host.submit(job).get();
        assert_eq!(ended.is_ok(), operation == "close", "{operation}");
        assert_eq!(permit.in_use(), 0, "{operation}");
        assert_eq!(connections.in_use(), 0, "{operation}");
    }
}

// case F18
#[test]
fn no_more_jobs_run_at_once_than_the_limit_says() {
    let host = Host::new();
    let limit = gate("limit", 3);
    let running = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let jobs: Vec<_> = (0..200)
        .map(|_| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            host.submit(job_fn(needing(&limit), move |_, _| {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }))
        })
        .collect();
    JobHandle::join_all(&jobs).unwrap();
    assert!(most.load(Ordering::SeqCst) <= 3);
}

// case F20
#[test]
fn fifty_agents_share_three_connections_because_none_keeps_one_while_a_model_answers() {
    /// How many are in the database, and the most that ever were.
    type Out = Arc<(AtomicUsize, AtomicUsize)>;
    fn in_the_database(
        provider: &Arc<CountingDbResourceProvider>,
        out: &Out,
    ) -> impl Job<Output = ()> + use<> {
        let (provider, out) = (Arc::clone(provider), Arc::clone(out));
        job_fn(
            move || JobRequirements::none().provider(&provider).transaction(),
            move |_, _| {
                out.1
                    .fetch_max(out.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                out.0.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            },
        )
    }
    let host = Host::new();
    let provider = Arc::new(CountingDbResourceProvider::new("orders", 3).unwrap());
    let model = gate("model", 2);
    let out = Out::default();
    let agents: Vec<_> = (0..50)
        .map(|_| {
            let (provider, model, out) =
                (Arc::clone(&provider), Arc::clone(&model), Arc::clone(&out));
            host.submit(doer_fn(move |context| {
                context.submit(in_the_database(&provider, &out))?.get()?;
                let thinking = job_fn(needing(&model), |resources, _| Ok(resources.has_database()));
                let with_a_connection = *context.submit(thinking)?.get()?;
                context.submit(in_the_database(&provider, &out))?.get()?;
                Ok(with_a_connection)
            }))
        })
        .collect();
    for agent in agents {
        assert!(!*agent.get().unwrap());
    }
    assert!(out.1.load(Ordering::SeqCst) <= 3);
    assert_eq!(provider.admission().in_use(), 0);
}

// case F21
#[test]
fn a_panic_inside_a_transaction_rolls_it_back() {
    let host = Host::new();
    let log = Log::default();
    let orders = Arc::new(Recording::new("db", &log));
    let needed = Arc::clone(&orders);
    let job = job_fn(
        move || JobRequirements::none().provider(&needed).transaction(),
        |_, _| -> Result<(), JobError> { panic!("inside the transaction") },
    );
    host.submit(job).get().unwrap_err();
    assert_eq!(
        log.lines(),
        ["db.acquire", "db.begin", "db.rollback", "db.close"]
    );
    assert_eq!(orders.admission().in_use(), 0);
}
