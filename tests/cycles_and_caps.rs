//! Waits that could never end are refused: in a cycle, and under a cap that is used up.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use nucleo_runtime::{
    ErrorKind, JobDispatcher, JobError, JobHandle, JobRequirements, ManualClock, Workflow, doer_fn,
    governor, job_fn,
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
