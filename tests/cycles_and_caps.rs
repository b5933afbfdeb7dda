//! Waits that could never end are refused: in a cycle, and under a cap that is used up.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use nucleo_runtime::admission::CountingGate;
use nucleo_runtime::events::{EventFilter, EventKind};
use nucleo_runtime::{
    ErrorKind, JobDispatcher, JobError, JobHandle, JobRequirements, ManualClock, ShutdownError,
    Workflow, doer_fn, governor, job_fn,
};

fn with_cap(threads: Option<usize>) -> (JobDispatcher, Workflow) {
    let mut builder = JobDispatcher::builder().clock(Arc::new(ManualClock::new()));
    if let Some(threads) = threads {
        builder = builder.max_threads(threads);
    }
    let dispatcher = builder.build().unwrap();
    dispatcher.start().unwrap();
    (dispatcher, Workflow::new("user", "test").unwrap())
}

fn is_deadlock(error: &JobError) -> bool {
    matches!(error.kind(), ErrorKind::Deadlock { .. })
}

#[test]
fn a_job_that_waits_for_itself_or_its_ancestor_is_refused_naming_the_cycle() {
    let (dispatcher, workflow) = with_cap(None);
    let (own, told) = mpsc::channel::<JobHandle<String>>();
    let root = dispatcher
        .submit(
            &workflow,
            doer_fn(move |context| {
                let own = told.recv().unwrap();
                let on_itself = own.get().unwrap_err();
                assert!(is_deadlock(&on_itself), "{on_itself}");
                let child = context.submit(doer_fn(move |_| {
                    let error = own.get().unwrap_err();
                    assert!(is_deadlock(&error), "{error}");
                    Ok(error.to_string())
                }))?;
                Ok(child.get()?.to_string())
            }),
        )
        .unwrap();
    own.send(root.clone()).unwrap();
    let text = root.get().unwrap();
    assert!(text.contains(root.job_id()), "{text}");
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn two_jobs_that_wait_for_each_other_do_not_hang() {
    for _ in 0..50 {
        let (dispatcher, workflow) = with_cap(None);
        let make = || {
            let (sender, other) = mpsc::channel::<JobHandle<u32>>();
            let handle = dispatcher
                .submit(
                    &workflow,
                    doer_fn(move |_| match other.recv().unwrap().get() {
                        Ok(_) => Ok(1),
                        Err(error) if is_deadlock(&error) => Ok(2),
                        Err(error) => Err(error),
                    }),
                )
                .unwrap();
            (handle, sender)
        };
        let ((a, tell_a), (b, tell_b)) = (make(), make());
        tell_a.send(b.clone()).unwrap();
        tell_b.send(a.clone()).unwrap();
        let answers = [*a.get().unwrap(), *b.get().unwrap()];
        assert!(answers.contains(&2), "one of them is refused: {answers:?}");
        dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    }
}

#[test]
fn a_wait_for_a_job_that_depends_on_the_waiting_one_is_refused() {
    let (dispatcher, workflow) = with_cap(None);
    let (sender, after_it) = mpsc::channel::<JobHandle<()>>();
    let first: JobHandle<()> = dispatcher
        .submit(
            &workflow,
            doer_fn(move |_| {
                let error = after_it.recv().unwrap().get().unwrap_err();
                assert!(is_deadlock(&error), "{error}");
                Ok(())
            }),
        )
        .unwrap();
    let second = dispatcher
        .submit_with(&workflow, job_fn(JobRequirements::none, |_, _| Ok(())))
        .after(&first)
        .submit()
        .unwrap();
    sender.send(second.clone()).unwrap();
    first.get().unwrap();
    second.get().unwrap();
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

/// Nests orchestrators to a depth and answers how deep it came.
fn nested(depth: u32) -> impl nucleo_runtime::Doer<Output = u32> {
    doer_fn(move |context| {
        if depth == 0 {
            return Ok(0);
        }
        let child: Box<dyn nucleo_runtime::Doer<Output = u32>> = Box::new(nested(depth - 1));
        match context.submit(child)?.get() {
            Ok(below) => Ok(*below + 1),
            Err(error) => Err(error),
        }
    })
}

// case RT-5
#[test]
fn orchestrators_nested_past_the_cap_are_refused_naming_it() {
    let (dispatcher, workflow) = with_cap(Some(8));
    let error = dispatcher
        .submit(&workflow, nested(20))
        .unwrap()
        .get()
        .unwrap_err();
    assert!(error.to_string().contains("max_threads"), "{error}");
    assert!(error.to_string().contains('8'), "{error}");
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn orchestrators_fanned_out_past_the_cap_all_end() {
    for cap in [8, 10, 12, 16] {
        let (dispatcher, workflow) = with_cap(Some(cap));
        let roots: Vec<_> = (0..20)
            .map(|_| {
                dispatcher
                    .submit(
                        &workflow,
                        doer_fn(|context| {
                            context.next_step();
                            let children = (0..5)
                                .map(|_| {
                                    context.submit_in_current_step(job_fn(
                                        JobRequirements::none,
                                        |_, _| Ok(()),
                                    ))
                                })
                                .collect::<Result<Vec<_>, _>>()?;
                            JobHandle::join_all(&children).map(|done| done.len())
                        }),
                    )
                    .unwrap()
            })
            .collect();
        for root in roots {
            if let Err(error) = root.get() {
                assert!(error.to_string().contains("max_threads"), "{error}");
            }
        }
        let threads = dispatcher.threads();
        assert!(threads.peak <= threads.cap, "{threads:?}");
        dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    }
}

#[test]
fn code_on_an_orchestrators_thread_finds_its_dispatcher() {
    let (dispatcher, workflow) = with_cap(None);
    assert!(governor::dispatcher().is_none());
    assert!(governor::submit(job_fn(JobRequirements::none, |_, _| Ok(()))).is_err());
    let root = dispatcher
        .submit(
            &workflow,
            doer_fn(|context| {
                assert!(governor::is_running());
                let child = governor::submit(job_fn(JobRequirements::none, |_, _| Ok(())))?;
                child.get()?;
                assert_eq!(child.snapshot().parent_id(), Some(context.job_id()));
                Ok(())
            }),
        )
        .unwrap();
    root.get().unwrap();
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn subscriptions_leave_a_thread_to_the_jobs_and_the_runtime_its_own() {
    let dispatcher = JobDispatcher::builder().max_threads(9).build().unwrap();
    let observer = || Arc::new(|_: &Arc<nucleo_runtime::events::Event>| {});
    let mut subscriptions = Vec::new();
    // Before the start as well: the runtime's own threads have their seats.
    while let Ok(subscription) = dispatcher.subscribe(EventFilter::all(), observer()) {
        subscriptions.push(subscription);
        assert!(subscriptions.len() < 9);
    }
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "test").unwrap();
    for _ in 0..20 {
        let job = job_fn(JobRequirements::none, |_, _| Ok(1));
        assert_eq!(
            *dispatcher.submit(&workflow, job).unwrap().get().unwrap(),
            1
        );
    }
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_cap_that_two_dispatchers_use_up_together_is_noticed() {
    let (one, workflow) = with_cap(Some(8));
    let (other, _) = with_cap(Some(8));
    let (first, second) = (one.clone(), other.clone());
    let flow = workflow.clone();
    let root = one
        .submit(
            &workflow,
            doer_fn(move |_| {
                let (back, flow_back) = (first.clone(), flow.clone());
                let across = second.submit(
                    &flow,
                    doer_fn(move |_| {
                        let job = job_fn(JobRequirements::none, |_, _| Ok(7));
                        back.submit(&flow_back, job)?.get().map(|seven| *seven)
                    }),
                )?;
                across.get().map(|seven| *seven)
            }),
        )
        .unwrap();
    let error = root.get().unwrap_err();
    assert!(error.to_string().contains("max_threads"), "{error}");
    one.shutdown(Duration::from_secs(5)).unwrap();
    other.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn bound_work_and_callbacks_wait_by_their_jobs_rules() {
    let (dispatcher, workflow) = with_cap(None);
    let (own, told) = mpsc::channel::<JobHandle<()>>();
    let root = dispatcher
        .submit(
            &workflow,
            doer_fn(move |context| {
                let own = told.recv().unwrap();
                let bound = own.clone();
                let error = std::thread::spawn(context.bind(move || bound.get().unwrap_err()))
                    .join()
                    .unwrap();
                assert!(is_deadlock(&error), "{error}");
                let (fired, firing) = mpsc::channel();
                context.on_cancel(move || fired.send(()).unwrap());
                firing.recv().unwrap();
                // Registered after the cancellation has fired, the callback runs here and now. One
                // registered a moment earlier would run on the thread that cancels.
                let (tell, told) = mpsc::channel();
                context.on_cancel(move || tell.send(own.get().unwrap_err()).unwrap());
                let error = told.recv().unwrap();
                assert!(is_deadlock(&error), "{error}");
                Ok(())
            }),
        )
        .unwrap();
    own.send(root.clone()).unwrap();
    while !root.cancel("enough") {}
    assert!(root.get().unwrap_err().is_cancelled());
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn an_observer_cannot_wait_for_the_end_of_its_own_queue() {
    let (dispatcher, workflow) = with_cap(None);
    let (sender, told) = mpsc::channel();
    let ending = std::sync::Mutex::new(Some(dispatcher.clone()));
    let _subscription = dispatcher
        .subscribe(
            EventFilter::all().kind(EventKind::JobCompleted),
            Arc::new(move |_: &Arc<nucleo_runtime::events::Event>| {
                if let Some(dispatcher) = ending.lock().unwrap().take() {
                    let _ = sender.send(dispatcher.shutdown(Duration::from_secs(1)));
                }
            }),
        )
        .unwrap();
    let job = job_fn(JobRequirements::none, |_, _| Ok(()));
    dispatcher.submit(&workflow, job).unwrap().get().unwrap();
    assert_eq!(told.recv().unwrap(), Err(ShutdownError::FromInside));
}

#[test]
fn limits_made_as_a_program_goes_are_forgotten_when_they_are_gone() {
    let (dispatcher, workflow) = with_cap(None);
    for round in 0..300 {
        // The same name for one that is gone, and a new one each time.
        for name in ["same".to_owned(), format!("tenant-{round}")] {
            let gate = Arc::new(CountingGate::new(name, 1).unwrap());
            let job = job_fn(move || JobRequirements::none().permit(&gate), |_, _| Ok(()));
            dispatcher.submit(&workflow, job).unwrap().get().unwrap();
        }
    }
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}
