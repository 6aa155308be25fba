//! Compiled code: made by a child, kept, and never run when it is not what the child wrote.

use super::*;

/// Stands in for `waystation plugin compile`: a script that has this test binary run the command with its arguments.
fn install_compiler(host: &TestHost) {
    let dir = host.dir.path();
    let script = format!(
        "#!/bin/sh\ncd '{}' || exit 1\nprintf '%s\\n' \"$@\" > arguments\n\
         '{}' --exact cli::plugin::tests::child_compiles --ignored --nocapture >&2\n",
        dir.display(),
        std::env::current_exe().unwrap().display()
    );
    write_script(&dir.join("compiler"), &script);
}

fn write_script(path: &Path, text: &str) {
    // Another process writes what is run: a file that this one has open for writing, were it only in a child that another test
    // has just forked, cannot be.
    let source = path.with_extension("text");
    fs::write(&source, text).unwrap();
    let installed =
        std::process::Command::new("install").args(["-m", "755"]).arg(&source).arg(path).status();
    assert!(installed.unwrap().success());
}

fn code_files(host: &TestHost) -> Vec<PathBuf> {
    let folder = fs::read_dir(host.dir.path().join("compiled")).unwrap();
    folder.map(|entry| entry.unwrap().path()).collect()
}

fn compilations(host: &TestHost) -> usize {
    host.digests.puts.load(Ordering::SeqCst)
}

/// Opens the same folder again, as the next start of the agent does.
fn again(host: &TestHost) -> PluginHost {
    PluginHost::new(HostOptions {
        store_dir: host.dir.path().join("compiled"),
        compiler: host.dir.path().join("compiler"),
        clock: host.clock.clone(),
        digests: host.digests.clone(),
    })
    .unwrap()
}

#[test]
fn a_plugin_is_compiled_once_and_anew_only_when_its_code_was_touched() {
    let host = TestHost::new();
    install_compiler(&host);
    let settings = settings(component("clean"));
    let plugin = host.host.load(&settings).unwrap();
    assert_eq!(plugin.digest(), sha256(&fs::read(&settings.guest.plugin).unwrap()));
    let outcomes =
        run(&plugin, &[r#"{"status":"bad"}"#, "[]", r#"{"temperature_c":100}"#]).unwrap();
    assert_eq!(outcomes[0], Outcome::Drop);
    assert!(matches!(&outcomes[1], Outcome::Reject(why) if why.starts_with("no JSON object")));
    let hot = br#"{"temperature_f":212.0,"cleaned_by":"telemetry"}"#.to_vec();
    assert_eq!(outcomes[2], Outcome::Payload(hot));

    let mode = fs::metadata(host.dir.path().join("compiled")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let [file] = &code_files(&host)[..] else { panic!() };
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    again(&host).load(&settings).unwrap();
    assert_eq!(compilations(&host), 1, "the second start found it");

    // A flipped byte, a file of the right name that somebody else wrote, a link: none is run.
    let good = fs::read(file).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    fs::write(file, &flipped).unwrap();
    again(&host).load(&settings).unwrap();
    assert_eq!(compilations(&host), 2, "flipped");
    fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap();
    again(&host).load(&settings).unwrap();
    assert_eq!(compilations(&host), 3, "others may write it");
    let elsewhere = host.dir.path().join("elsewhere");
    fs::rename(file, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, file).unwrap();
    again(&host).load(&settings).unwrap();
    assert_eq!(compilations(&host), 4, "a link");
    host.digests.known.lock().unwrap().clear();
    again(&host).load(&settings).unwrap();
    assert_eq!(compilations(&host), 5, "no digest");
    assert!(fs::symlink_metadata(file).unwrap().is_file());
}

#[test]
fn what_other_engines_and_dead_children_left_is_cleared_away() {
    let host = TestHost::new();
    let folder = host.dir.path().join("compiled");
    for name in ["aa-0000000000000000.code", "aa-0000000000000000.part"] {
        fs::write(folder.join(name), "old").unwrap();
    }
    fs::write(folder.join("README"), "not ours").unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    again(&host);
    assert_eq!(code_files(&host), [folder.join("README")]);
    assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_folder_that_is_a_link_is_refused() {
    let dir = TempDir::new().unwrap();
    let target = TempDir::new().unwrap();
    std::os::unix::fs::symlink(target.path(), dir.path().join("compiled")).unwrap();
    let error = PluginHost::new(HostOptions {
        store_dir: dir.path().join("compiled"),
        compiler: PathBuf::new(),
        clock: Arc::new(SystemClock),
        digests: Arc::new(Digests::default()),
    })
    .unwrap_err();
    assert!(matches!(error, PluginError::Store { .. }), "{error}");
}

#[test]
fn a_pin_that_does_not_match_is_told_with_both_digests() {
    let host = TestHost::new();
    let mut settings = settings(component("clean"));
    settings.guest.sha256 = Some([0xab; 32]);
    let error = host.host.load(&settings).unwrap_err();
    assert!(matches!(error, PluginError::Pin { .. }));
    assert!(error.to_string().contains(&"ab".repeat(32)), "{error}");
}

#[test]
fn a_compiled_file_is_run_only_with_its_pin() {
    let host = TestHost::new();
    let (path, digest) = compiled("test-guests");
    let mut settings = settings(path);
    let error = host.host.load(&settings).unwrap_err().to_string();
    assert!(error.contains("run only with a sha256 that pins it"), "{error}");
    settings.guest.sha256 = Some(digest);
    assert_eq!(host.host.load(&settings).unwrap().digest(), digest);
}

#[test]
fn an_unfit_file_is_told_with_its_path_and_all_problems_and_never_compiled() {
    let host = TestHost::new();
    let error = host.host.load(&settings(component("test-sink"))).unwrap_err().to_string();
    assert!(error.contains("test-sink.wasm cannot be used: it is a sink"), "{error}");
    assert!(error.contains("; it imports waystation:plugin/http@0.1.0"), "{error}");
}

#[test]
fn what_a_compiler_says_or_how_it_ended_is_told() {
    let host = TestHost::new();
    let settings = settings(component("clean"));
    let error = |host: &TestHost| host.host.load(&settings).unwrap_err().to_string();
    assert!(error(&host).contains("compiler cannot be started"));
    let compiler = host.dir.path().join("compiler");
    write_script(&compiler, "#!/bin/sh\necho 'out of luck' >&2\nexit 3\n");
    assert!(error(&host).ends_with("clean.wasm cannot be compiled: out of luck"));
    write_script(&compiler, "#!/bin/sh\nkill -9 $$\n");
    assert!(error(&host).contains("the compiler ended with signal: 9"));
    assert!(code_files(&host).is_empty());
}

#[test]
fn compiling_refuses_another_file_than_the_one_that_was_looked_at() {
    let dir = TempDir::new().unwrap();
    let output = dir.path().join("out");
    let error = compile_file(&component("clean"), &output, Some([1; 32])).unwrap_err();
    assert!(matches!(error, PluginError::Pin { .. }), "{error}");
    assert!(!output.exists());
    fs::write(&output, "there").unwrap();
    let error = compile_file(&component("clean"), &output, None).unwrap_err();
    assert!(matches!(error, PluginError::File { verb: "write", .. }), "{error}");
    assert_eq!(fs::read(&output).unwrap(), b"there");
}

#[test]
fn a_check_finds_what_a_load_would_and_compiles_nothing() {
    let mut settings = settings(component("clean"));
    assert!(check(PluginUse::Transform(&settings)).is_ok());
    settings.guest.sha256 = Some([0xab; 32]);
    assert!(
        check(PluginUse::Transform(&settings)).unwrap_err()[0].contains("the config pins abab")
    );
    settings.guest.plugin = component("test-sink");
    assert_eq!(check(PluginUse::Transform(&settings)).unwrap_err().len(), 3);
    let (path, digest) = compiled("test-guests");
    settings.guest.plugin = path;
    settings.guest.sha256 = None;
    assert_eq!(check(PluginUse::Transform(&settings)).unwrap_err(), [COMPILED_WITHOUT_PIN]);
    settings.guest.sha256 = Some(digest);
    assert!(check(PluginUse::Transform(&settings)).unwrap().compiled);
    settings.guest.plugin = PathBuf::from("/nowhere/x.wasm");
    assert!(
        check(PluginUse::Transform(&settings)).unwrap_err()[0].starts_with("it cannot be read")
    );
}
