use nucleo_runtime::OrchestratorContext;

fn sent<T: Send>() {}
fn shared<T: Sync>() {}

fn main() {
    sent::<OrchestratorContext>();
    shared::<OrchestratorContext>();
}
