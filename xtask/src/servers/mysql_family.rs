//! What MySQL and MariaDB have in common.

use std::{
    ffi::OsString,
    io::Read,
    net::TcpStream,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::failure::{Context, Result};

/// A user for the tests, who may do everything from anywhere. Run at each start; the server is on loopback only.
const TEST_USER: &str = "\
CREATE USER IF NOT EXISTS 'posthaste'@'%';
GRANT ALL ON *.* TO 'posthaste'@'%' WITH GRANT OPTION;
CREATE DATABASE IF NOT EXISTS posthaste;
";

/// Settings that both know.
pub fn settings(folder: &Path, port: u16) -> Vec<OsString> {
    let mut settings = data_settings(folder);
    settings.extend([path_setting("--init-file=", &folder.join("start.sql"))]);
    settings.extend([path_setting("--socket=", Path::new("server.sock"))]);
    settings.extend([path_setting("--pid-file=", &folder.join("server.pid"))]);
    settings.extend([format!("--port={port}").into()]);
    settings
        .extend(["--bind-address=127.0.0.1", "--max-connections=400", "--skip-name-resolve"].map(Into::into));
    settings
}

/// Settings for making the data folder, which the server must be given too.
pub fn data_settings(folder: &Path) -> Vec<OsString> {
    let mut settings = vec![path_setting("--datadir=", &folder.join("data"))];
    settings.extend([path_setting("--tmpdir=", folder)]);
    settings.extend(
        [
            "--innodb-buffer-pool-size=128M",
            // The tests kill processes and servers, not the operating system: its cache is as good as the disk.
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-flush-method=nosync",
            "--innodb-doublewrite=0",
            "--innodb-use-native-aio=0",
            "--skip-log-bin",
            "--performance-schema=OFF",
        ]
        .map(Into::into),
    );
    settings
}

pub fn path_setting(name: &str, path: &Path) -> OsString {
    let mut setting = OsString::from(name);
    setting.push(path);
    setting
}

pub fn write_start_file(folder: &Path) -> Result<()> {
    let path = folder.join("start.sql");
    std::fs::write(&path, TEST_USER).or_cannot(|| format!("write {}", path.display()))
}

pub fn url(port: u16) -> String {
    format!("mysql://posthaste@127.0.0.1:{port}/posthaste?ssl-mode=disabled")
}

/// Both greet whoever connects with a packet that carries protocol version 10, once they take connections. One that
/// cannot take them says so with an error packet instead.
pub fn greets(port: u16) -> bool {
    const PATIENCE: Duration = Duration::from_secs(1);
    let Ok(mut stream) = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), PATIENCE) else {
        return false;
    };
    let mut packet = [0; 5];
    stream.set_read_timeout(Some(PATIENCE)).is_ok()
        && stream.read_exact(&mut packet).is_ok()
        && packet[4] == 10
}

/// The first of these programs in the search path, or where servers are kept that not everybody should run.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin", "/usr/libexec"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}
