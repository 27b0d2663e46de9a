use super::*;

const RIGHT: &str = r#"
name = "scaling"
about = "What a put costs as the cluster grows."
repeat = 5
[cluster]
nodes = [1, 3]
disk = ["real", "tmpfs"]
[network]
round_trip_ms = [0, 50]
[[network.event]]
at_s = 2
isolate = [0]
[[network.event]]
at_s = 4.5
heal = true
[load]
kind = "closed"
clients = [1, 64]
mix = { put = 1, range = 3 }
[[figure]]
kind = "line"
x = "nodes"
y = "throughput"
"#;

/// The error of a scenario in which one text was replaced by another.
fn error(from: &str, to: &str) -> String {
    assert!(RIGHT.contains(from), "{from} is not in the scenario");
    Scenario::parse("s.toml", &RIGHT.replace(from, to)).expect_err("it is wrong").to_string()
}

#[test]
fn every_combination_of_the_lists_is_a_cell() {
    let scenario = Scenario::parse("s.toml", RIGHT).expect("it is right");
    let cells = scenario.cells();
    assert_eq!((cells.len(), scenario.repeat), (2 * 2 * 2 * 2 * 2, 5));
    assert!(cells.iter().enumerate().all(|(i, cell)| !cells[..i].contains(cell)), "a cell is there twice");
    assert_eq!(cells[0].to_string(), "eddy 1 node, 1 client");
    assert_eq!(cells[31].to_string(), "etcd 3 nodes, 64 clients, round trip 50 ms, tmpfs");
    assert_eq!((cells[31].on(Axis::Nodes), cells[31].on(Axis::RoundTripMs)), (3.0, 50.0));
    assert_eq!(cells[31].of(System::Eddy), cells[30]);
}

#[test]
fn what_is_not_said_has_a_default() {
    let scenario =
        Scenario::parse("s", "name='s'\nabout='x'\n[cluster]\nnodes=[1]\n[load]\nkind='open'\nrate=[10]\nmix={put=1}")
            .expect("it is right");
    assert_eq!(scenario.cluster.systems, [System::Eddy, System::Etcd]);
    assert_eq!((scenario.repeat, scenario.load.value_bytes, scenario.load.keys), (3, 256, 10_000));
    assert_eq!(scenario.cells().len(), 2);
}

#[test]
fn an_unknown_field_is_named_with_its_place() {
    let message = error("repeat = 5", "repeats = 5");
    assert!(
        message.contains("s.toml") && message.contains("line 4") && message.contains("unknown field `repeats`"),
        "{message}"
    );
    assert!(error("put = 1", "puts = 1").contains("unknown field `puts`"));
    assert!(error("x = \"nodes\"", "x = \"node\"").contains("unknown variant `node`"));
    assert!(error("isolate = [0]", "isolate = [0]\nuntil = 4").contains("unknown field `until`"));
}

#[test]
fn a_value_that_makes_no_sense_is_named() {
    for (from, to, wanted) in [
        ("nodes = [1, 3]", "nodes = []", "cluster.nodes: is empty"),
        ("nodes = [1, 3]", "nodes = [0]", "cluster.nodes: from 1 to 64"),
        ("nodes = [1, 3]", "nodes = [1, 3]\nshare = { cpu = 0.01 }", "cluster.share.cpu: cores, 0.05 or more"),
        (
            "nodes = [1, 3]",
            "nodes = [1, 3]\nshare = { cpu = 1, memory_mib = 1 }",
            "cluster.share.memory_mib: 32 or more",
        ),
        ("isolate = [0]", "isolate = [1]", "the smallest cluster does not have"),
        ("heal = true", "heal = true\nsilence = [0]", "each has one of isolate, silence, heal"),
        ("at_s = 4.5", "at_s = 10", "at_s lies within load.measure_s"),
        ("[1, 64]", "[]", "a closed loop needs clients"),
        ("[1, 64]", "[1]\nrate = [5]", "load.rate: a closed loop has no rate"),
        ("\"closed\"", "\"open\"", "load.clients: only a closed loop"),
        ("put = 1, range = 3", "put = 0", "load.mix: all shares are 0"),
        ("put = 1, range = 3", "put = -1", "load.mix: shares are numbers from 0 on"),
        ("repeat = 5", "repeat = 0", "repeat: 0 experiments measure nothing"),
        ("\"scaling\"", "\"a b\"", "name: use letters"),
        ("x = \"nodes\"", "x = \"watchers\"", "figure.x: watchers is the same in all experiments"),
        ("clients = [1, 64]", "clients = [1, 64]\nvalue_bytes = 8", "load.value_bytes: from 32"),
        ("clients = [1, 64]", "clients = [1, 64]\ntrace = \"t\"", "only kind = \"replay\" has a trace"),
        ("clients = [1, 64]", "clients = [1, 64]\nmeasure_s = nan", "measure_s"),
        (
            "clients = [1, 64]",
            "clients = [1, 64]\noperations = 9",
            "load.operations: only a closed loop with warmup_s = 0",
        ),
        ("clients = [1, 64]", "clients = [1, 64]\nwarmup_s = 0\noperations = 0", "load.operations: 0 operations"),
        ("clients = [1, 64]", "clients = [1, 64]\nwarmup_s = 0\noperations = 9", "may end before it"),
    ] {
        let message = error(from, to);
        assert!(message.contains(wanted), "{from} -> {to}: {message}");
    }
}

#[test]
fn all_scenarios_of_this_repository_are_right() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut names = Vec::new();
    let files = |folder: &Path| std::fs::read_dir(folder).expect("the folder is there").flatten();
    for file in files(&folder).chain(files(&folder.join("paper"))) {
        if file.path().extension().is_some_and(|e| e == "toml") {
            let (scenario, _) = Scenario::load(&file.path()).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(Some(scenario.name.as_str()), file.path().file_stem().and_then(|s| s.to_str()));
            names.push(scenario.name);
        }
    }
    assert!(names.len() >= 10 && names.iter().any(|name| name == "paper-puts"), "{names:?}");
}
