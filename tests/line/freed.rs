//! Whose an account is: when it is let go of, and who hears of what comes back to it afterwards.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nucleo_runtime::admission::CountingGate;
use nucleo_runtime::{JobDispatcher, JobRequirements, Workflow, job_fn};

use super::cases::gate;
use super::line::{Line, both, of};

fn dispatcher() -> JobDispatcher {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    dispatcher
}

fn needs(gates: &[&Arc<CountingGate>]) -> impl Fn() -> JobRequirements + Send + Sync + 'static {
    let gates: Vec<_> = gates.iter().map(|gate| Arc::clone(gate)).collect();
    move || {
        let none = JobRequirements::none();
        gates.iter().fold(none, |needs, gate| needs.permit(gate))
    }
}

#[test]
fn what_comes_back_after_a_stop_is_heard_by_whom_the_account_serves_now() {
    let (one, two) = (Line::new(), Line::new());
    let gate = gate("gate", 1);
    let grant = one.admit(of(&gate, ())).unwrap();
    one.bench.stop();
    let waiting = two.ask(of(&gate, ()));
    assert_eq!(two.parked(), 1);
    grant.release();
    drop(waiting.granted());
}

#[test]
fn what_comes_back_after_a_clear_is_heard_by_whom_the_account_serves_now() {
    let (one, two) = (dispatcher(), dispatcher());
    let workflow = Workflow::new("alice", "clear").unwrap();
    let gate = gate("gate", 1);
    let (begun, begins) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let holder = job_fn(needs(&[&gate]), move |_, _| {
        begun.send(()).unwrap();
        let _ended = ends.recv();
        Ok(())
    });
    let holder = one.submit(&workflow, holder).unwrap();
    begins.recv().unwrap();
    let refused = two.submit(&workflow, job_fn(needs(&[&gate]), |_, _| Ok(())));
    let refused = refused.unwrap().get().unwrap_err().to_string();
    assert!(refused.contains("belongs to admission"), "{refused}");
    one.limiters().clear();
    let waiting = two.submit(&workflow, job_fn(needs(&[&gate]), |_, _| Ok(7)));
    let waiting = waiting.unwrap();
    while two.admission().queue_len() == 0 {
        thread::yield_now();
    }
    end.send(()).unwrap();
    holder.get().unwrap();
    assert_eq!(*waiting.get().unwrap(), 7);
    for dispatcher in [one, two] {
        dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    }
}

#[test]
fn a_clear_keeps_every_account_that_somebody_waits_for() {
    let dispatcher = dispatcher();
    let workflow = Workflow::new("alice", "clear").unwrap();
    let (fits, short) = (gate("fits", 1), gate("short", 1));
    let (begun, begins) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let holder = job_fn(needs(&[&short]), move |_, _| {
        begun.send(()).unwrap();
        let _ended = ends.recv();
        Ok(())
    });
    let holder = dispatcher.submit(&workflow, holder).unwrap();
    begins.recv().unwrap();
    // Held by one of the two, and asks for both.
    let waiting = job_fn(needs(&[&fits, &short]), |_, _| Ok(()));
    let waiting = dispatcher.submit(&workflow, waiting).unwrap();
    while dispatcher.admission().queue_len() == 0 {
        thread::yield_now();
    }
    dispatcher.limiters().clear();
    let namesake = gate("fits", 1);
    let refused = dispatcher.submit(&workflow, job_fn(needs(&[&namesake]), |_, _| Ok(())));
    let refused = refused.unwrap().get().unwrap_err().to_string();
    assert!(
        refused.contains("two accounts are named 'fits'"),
        "{refused}"
    );
    end.send(()).unwrap();
    holder.get().unwrap();
    waiting.get().unwrap();
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_refused_demand_leaves_the_accounts_that_it_brought_to_others() {
    let (one, two) = (Line::new(), Line::new());
    let (free, taken) = (gate("free", 1), gate("taken", 1));
    drop(two.admit(of(&taken, ())).unwrap());
    let refused = one.admit(both((&free, ()), (&taken, ()))).unwrap_err();
    assert!(refused.to_string().contains("'taken' belongs"), "{refused}");
    drop(two.admit(of(&free, ())).unwrap());
}
