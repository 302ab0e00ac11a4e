use std::time::Duration;

use taskward::Directive;

#[test]
fn a_directive_keeps_its_kind_whatever_its_payload() {
    let second = Duration::from_secs(1);
    for (directive, stripped) in [
        (Directive::Proceed(7), Directive::proceed()),
        (Directive::Idle(7), Directive::idle()),
        (Directive::Sleep(second, 7), Directive::sleep(second)),
    ] {
        assert_eq!(*directive.payload(), 7);
        assert_eq!(*directive.map(|n| n * 2).payload(), 14);
        assert_eq!(directive.strip(), stripped);
    }
}
