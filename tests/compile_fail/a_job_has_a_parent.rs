use nucleo_runtime::{JobDispatcher, JobRequirements, job_fn};

fn submit(dispatcher: &JobDispatcher) {
    let job = job_fn(JobRequirements::none, |_, _| Ok(()));
    let _ = dispatcher.submit("alice", job);
}

fn main() {}
