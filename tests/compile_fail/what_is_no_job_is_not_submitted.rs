use nucleo_runtime::{JobDispatcher, Workflow};

struct Neither;

fn submit(dispatcher: &JobDispatcher, workflow: &Workflow) {
    let _ = dispatcher.submit(workflow, Neither);
}

fn main() {}
