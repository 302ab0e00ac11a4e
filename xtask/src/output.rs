//! Standard output, whose reader may be gone.

/// Like `println!`, but a closed pipe is nobody's business: the work goes on.
macro_rules! say {
    ($($part:tt)*) => {{
        use std::io::Write;
        writeln!(std::io::stdout(), $($part)*).ok();
    }};
}
pub(crate) use say;
