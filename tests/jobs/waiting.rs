//! Waiting for jobs, and whose work a thread does.

use std::cell::Cell;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use nucleo_runtime::admission::CountingGate;
use nucleo_runtime::{
    Clock, DelayedHandle, ErrorKind, Job, JobContext, JobError, JobHandle, JobRequirements,
    JobResources, doer_fn, job_fn, testing,
};

use crate::support::{Host, held};

/// Sent from one thread to another, and never shared.
struct NotSync(#[expect(dead_code, reason = "makes the type what it is")] Cell<u8>);

#[test]
fn a_handle_is_clone_send_and_sync_whatever_its_output_is() {
    fn holds<T: Clone + Send + Sync>() {}
    holds::<JobHandle<NotSync>>();
    holds::<JobHandle<std::rc::Rc<u8>>>();
    holds::<DelayedHandle<()>>();
    holds::<JobContext>();
    holds::<JobResources>();
}

#[test]
fn everybody_who_asks_gets_the_same_result() {
    let host = Host::new();
    let (job, hold) = held(JobRequirements::none);
    let handle = host.submit(job);
    let start = Arc::new(Barrier::new(9));
    let waiters: Vec<_> = (0..8)
        .map(|_| {
            let (handle, start) = (handle.clone(), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                handle.get().unwrap()
            })
        })
        .collect();
    start.wait();
    hold.release();
    let first = handle.get().unwrap();
    for waiter in waiters {
        assert!(Arc::ptr_eq(&first, &waiter.join().unwrap()));
    }
    assert!(Arc::ptr_eq(&first, &handle.get().unwrap()));
}

#[test]
fn everybody_who_asks_gets_the_same_error() {
    let host = Host::new();
    let handle = host.submit(job_fn(JobRequirements::none, |_, _| -> Result<(), _> {
        Err(JobError::not_found("order", 7))
    }));
    for _ in 0..3 {
        let error = handle.clone().get().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ResourceNotFound { .. }));
    }
}

#[test]
fn a_wait_ends_at_its_deadline_and_the_job_goes_on() {
    let host = Host::new();
    let (release, released) = mpsc::channel();
    let job = job_fn(JobRequirements::none, move |_, _| {
        Ok(released.recv().unwrap())
    });
    // It is not to time out, however far the clock is moved below.
    let handle: JobHandle<&str> = host.submit(job.timeout(None));
    assert!(handle.try_get().unwrap().is_none());
    assert!(handle.get_timeout(Duration::ZERO).unwrap().is_none());
    let waiting: Vec<_> = [true, false]
        .into_iter()
        .map(|by_timeout| {
            let handle = handle.clone();
            let deadline = host.clock.now() + Duration::from_secs(10);
            thread::spawn(move || {
                if by_timeout {
                    handle.get_timeout(Duration::from_secs(10))
                } else {
                    handle.get_deadline(deadline)
                }
            })
        })
        .collect();
    // They begin to wait when they get to it, so time is moved until both have given up.
    while waiting.iter().any(|waiter| !waiter.is_finished()) {
        host.clock.advance(Duration::from_secs(10));
        thread::yield_now();
    }
    for waiter in waiting {
        assert_eq!(waiter.join().unwrap().unwrap(), None);
    }
    assert!(!handle.is_settled());
    release.send("held").unwrap();
    assert_eq!(*handle.get().unwrap(), "held");
    assert_eq!(*handle.try_get().unwrap().unwrap(), "held");
    assert_eq!(*handle.get_timeout(Duration::MAX).unwrap().unwrap(), "held");
    let past = host.clock.now();
    assert!(handle.get_deadline(past).unwrap().is_some());
}

#[test]
fn a_fan_in_answers_in_order_and_waits_for_all_even_when_one_fails() {
    let host = Host::new();
    let numbers: Vec<_> = (0..10)
        .map(|n| host.submit(job_fn(JobRequirements::none, move |_, _| Ok(n))))
        .collect();
    let joined: Vec<i32> = JobHandle::join_all(&numbers)
        .unwrap()
        .iter()
        .map(|n| **n)
        .collect();
    assert_eq!(joined, (0..10).collect::<Vec<_>>());
    assert!(JobHandle::<()>::join_all(&[]).unwrap().is_empty());

    let failing = |text: &'static str| {
        job_fn(JobRequirements::none, move |_, _| {
            Err::<&'static str, _>(JobError::correctable(text))
        })
    };
    let (slow, hold) = held(JobRequirements::none);
    let handles = [
        host.submit(failing("the first failure")),
        host.submit(failing("the second failure")),
        host.submit(slow),
    ];
    let joining = {
        let handles = handles.clone();
        thread::spawn(move || JobHandle::join_all(&handles).map(drop))
    };
    handles[1].get().unwrap_err();
    assert!(!joining.is_finished());
    hold.release();
    let error = joining.join().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the first failure");
    assert!(handles[2].is_settled());
}

#[test]
fn dropping_a_handle_lets_the_job_run_on() {
    let host = Host::new();
    let (told, ran) = mpsc::channel();
    drop(host.submit(job_fn(JobRequirements::none, move |_, _| {
        told.send("ran").unwrap();
        Ok(())
    })));
    assert_eq!(ran.recv(), Ok("ran"));
}

#[test]
fn a_cancel_through_the_handle_is_the_dispatchers() {
    let host = Host::new();
    let (job, hold) = held(JobRequirements::none);
    let running = host.submit(job);
    hold.wait_until_running();
    assert!(running.cancel("through the handle"));
    assert!(host.dispatcher.cancel(running.job_id(), "once more"));
    hold.release();
    let error = running.get().unwrap_err();
    let ErrorKind::Cancelled { reason } = error.kind() else {
        panic!("{error:?}")
    };
    assert_eq!(reason, "through the handle");
    assert!(!running.cancel("too late"));
    assert!(!host.dispatcher.cancel(running.job_id(), "too late"));
    assert!(!host.dispatcher.cancel("no such job", "at all"));
}

#[test]
fn an_orchestrator_that_waits_is_woken_by_its_cancellation() {
    let host = Host::new();
    let (give, given) = mpsc::channel::<JobHandle<&'static str>>();
    let (about_to_wait, waits) = mpsc::channel();
    let doer = host.submit(doer_fn(move |_| {
        let stuck = given.recv().unwrap();
        about_to_wait.send(()).unwrap();
        Ok(*stuck.get()?)
    }));
    let (job, hold) = held(JobRequirements::none);
    let stuck = host.submit(job);
    give.send(stuck.clone()).unwrap();
    waits.recv().unwrap();
    assert!(doer.cancel("enough"));
    assert!(doer.get().unwrap_err().is_cancelled());
    assert!(!stuck.is_settled());
    hold.release();
    stuck.get().unwrap();
}

/// How a thread sees itself: the job that it works for, and whether that job holds.
fn seen() -> (Option<String>, bool) {
    (
        JobContext::current().map(|context| context.job_id().to_owned()),
        JobContext::is_executing_with_resources(),
    )
}

// case CTX-15
#[test]
fn the_current_job_is_the_one_whose_thread_asks() {
    assert_eq!(seen(), (None, false));
    let host = Host::new();
    let job = job_fn(JobRequirements::none, |_, context| {
        let current = JobContext::current().unwrap();
        assert_eq!(current.job_id(), context.job_id());
        current.note("noted", "through the current one")?;
        assert!(context.snapshot().metadata().get("noted").is_some());
        let outside = thread::spawn(seen).join().unwrap();
        assert_eq!(outside, (None, false), "a thread of its own is outside");
        Ok(seen())
    });
    let handle = host.submit(job);
    assert_eq!(
        *handle.get().unwrap(),
        (Some(handle.job_id().to_owned()), false)
    );
    let doer = host.submit(doer_fn(|_| Ok(seen())));
    assert_eq!(
        *doer.get().unwrap(),
        (Some(doer.job_id().to_owned()), false)
    );
}

// case CTX-16
#[test]
fn a_job_holds_from_its_first_hook_to_the_end_of_its_work() {
    struct Hooks {
        permit: Arc<CountingGate>,
        seen: mpsc::Sender<(&'static str, bool)>,
    }
    impl Hooks {
        fn tell(&self, hook: &'static str) {
            let holds = JobContext::is_executing_with_resources();
            self.seen.send((hook, holds)).unwrap();
        }
    }
    impl Job for Hooks {
        type Output = ();
        fn requirements(&self) -> JobRequirements {
            self.tell("requirements");
            JobRequirements::none().permit(&self.permit)
        }
        fn pre_execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
            self.tell("pre");
            Ok(())
        }
        fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
            self.tell("execute");
            Ok(())
        }
        fn post_execute(&mut self, _: Result<&(), &JobError>, _: &JobContext) {
            self.tell("post");
        }
    }
    let host = Host::new();
    let (told, hooks) = mpsc::channel();
    let permit = Arc::new(CountingGate::new("permit", 1).unwrap());
    host.submit(Hooks { permit, seen: told }).get().unwrap();
    let seen: Vec<_> = hooks.iter().collect();
    assert_eq!(
        seen,
        [
            ("requirements", false),
            ("requirements", false),
            ("pre", true),
            ("execute", true),
            ("post", false),
        ]
    );
}

#[test]
fn work_that_is_bound_counts_as_the_jobs_and_an_unbound_thread_as_outside() {
    let host = Host::new();
    let (other, hold) = held(JobRequirements::none);
    let other = host.submit(other);
    hold.release();
    other.get().unwrap();
    let permit = Arc::new(CountingGate::new("permit", 1).unwrap());
    let asked = other.clone();
    let job = job_fn(
        move || JobRequirements::none().permit(&permit),
        move |_, context| {
            let me = Some(context.job_id().to_owned());
            let waiting = asked.clone();
            let bound = context.bind(move || (seen(), waiting.get().map(drop)));
            let (bound_sees, refused) = thread::spawn(bound).join().unwrap();
            assert_eq!(bound_sees, (me.clone(), true));
            let refused = refused.unwrap_err();
            assert!(matches!(refused.kind(), ErrorKind::Deadlock { .. }));

            let waiting = asked.clone();
            let outside = thread::spawn(move || waiting.get().map(drop));
            outside.join().unwrap()?;

            // On the job's own thread it changes nothing, also when it unwinds.
            context.bind(|| assert_eq!(seen().0, me))();
            let panicking = context.bind(|| panic!("inside"));
            let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panicking));
            assert!(unwound.is_err());
            assert_eq!(seen(), (me.clone(), true));
            Ok(())
        },
    );
    host.submit(job).get().unwrap();
}

#[test]
fn a_bound_thread_is_nobodys_after_its_work() {
    let host = Host::new();
    let job = job_fn(JobRequirements::none, |_, context| {
        let bound = context.bind(seen);
        let id = Some(context.job_id().to_owned());
        let (during, after) = thread::spawn(move || (bound(), seen())).join().unwrap();
        assert_eq!((during.0, after), (id, (None, false)));
        Ok(())
    });
    host.submit(job).get().unwrap();
}

#[test]
fn several_bound_threads_of_an_orchestrator_wait_side_by_side() {
    let host = Host::new();
    let (give, given) = mpsc::channel::<Vec<JobHandle<&'static str>>>();
    let doer = host.submit(doer_fn(move |context| {
        let waits: Vec<_> = given
            .recv()
            .unwrap()
            .into_iter()
            .map(|handle| thread::spawn(context.bind(move || handle.get().map(|answer| *answer))))
            .collect();
        let answers: Vec<_> = waits
            .into_iter()
            .map(|waiter| waiter.join().unwrap())
            .collect::<Result<_, JobError>>()?;
        Ok(answers.len())
    }));
    let (handles, holds): (Vec<_>, Vec<_>) = (0..4)
        .map(|_| {
            let (job, hold) = held(JobRequirements::none);
            (host.submit(job), hold)
        })
        .unzip();
    give.send(handles).unwrap();
    for hold in holds {
        hold.release();
    }
    assert_eq!(*doer.get().unwrap(), 4);
}

#[test]
fn callbacks_run_outside_of_any_job() {
    let host = Host::new();
    let (told, heard) = mpsc::channel();
    let (starting, started) = mpsc::channel();
    let handle = host.submit(job_fn(JobRequirements::none, move |_, context| {
        let told = told.clone();
        context.on_cancel(move || told.send(seen()).unwrap());
        starting.send(()).unwrap();
        context.sleep(Duration::from_secs(1)).map(drop)
    }));
    started.recv().unwrap();
    let id = handle.job_id().to_owned();
    let dispatcher = host.dispatcher.clone();
    let doer = host.submit(doer_fn(move |_| {
        Ok(dispatcher.cancel(&id, "from another job"))
    }));
    assert!(*doer.get().unwrap());
    assert_eq!(heard.recv().unwrap(), (None, false));
    handle.get().unwrap_err();
}

#[test]
fn a_clone_of_the_dispatcher_inside_a_job_outlives_the_others() {
    let host = Host::new();
    let (give, given) = mpsc::channel::<()>();
    let dispatcher = host.dispatcher.clone();
    let workflow = host.workflow.clone();
    let handle = host.submit(doer_fn(move |_| {
        given.recv().unwrap();
        let root = dispatcher.submit(&workflow, job_fn(JobRequirements::none, |_, _| Ok(1)))?;
        Ok(*root.get()?)
    }));
    drop(host);
    give.send(()).unwrap();
    assert_eq!(*handle.get().unwrap(), 1, "the clone kept it running");
}

#[test]
fn the_drop_of_the_last_clone_settles_every_handle() {
    let host = Host::new();
    let (job, hold) = held(JobRequirements::none);
    let running = host.submit(job);
    hold.wait_until_running();
    let queued = host
        .dispatcher
        .submit_with(&host.workflow, job_fn(JobRequirements::none, |_, _| Ok(())))
        .after(&running)
        .submit()
        .unwrap();
    testing::quiesce(&host.dispatcher);
    let clock = host.clock.clone();
    drop(host);
    let error = queued.get().unwrap_err();
    assert!(error.is_cancelled(), "{error}");
    // The running one is told to stop, and left behind when it does not.
    while !running.is_settled() {
        clock.advance(Duration::from_millis(100));
        thread::yield_now();
    }
    assert!(running.get().is_err());
    hold.release();
}

#[test]
fn a_wait_for_a_job_of_another_dispatcher_is_a_wait_like_any_other() {
    let (host, other) = (Host::new(), Host::new());
    let (job, hold) = held(JobRequirements::none);
    let far = other.submit(job);
    let (about_to_wait, waits) = mpsc::channel();
    let asked = far.clone();
    let doer = host.submit(doer_fn(move |_| {
        about_to_wait.send(()).unwrap();
        Ok(*asked.get()?)
    }));
    waits.recv().unwrap();
    hold.release();
    assert_eq!(*doer.get().unwrap(), "held");
}

/// `Output` need not be `Debug`, nor `Clone`, nor anything but shared.
#[test]
fn a_boxed_job_is_a_job() {
    struct Opaque;
    let host = Host::new();
    let boxed: Box<dyn Job<Output = Opaque>> =
        Box::new(job_fn(JobRequirements::none, |_, _| Ok(Opaque)));
    let Opaque = *host.submit(boxed).get().unwrap();
}
