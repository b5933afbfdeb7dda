//! What the types forbid.

// case ID-06
#[test]
fn what_the_two_kinds_of_job_may_not_do_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
