//! The manifests and the chart: rendered, read strictly, compared with each other and with what the program accepts,
//! and applied to the lab's API server.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::process::Command;

use ferry_deploy::{Mode, Objects, ferry, helm, kustomize, objects, repository};
use ferry_lab::api::Api;
use k8s_openapi::api::core::v1::{Container, PodSpec};

fn overlay(mode: Mode) -> Objects {
    objects(&kustomize(&format!("overlays/{}", mode.as_str())).unwrap()).unwrap()
}

/// The chart with what the overlay of that mode says.
fn chart(mode: Mode, more: &[&str]) -> Objects {
    let mode = format!("--set=mode={}", mode.as_str());
    let mut args = vec![
        "template",
        "--namespace=kube-system",
        "--set=name=kube-proxy",
        "--set=apiServer=https://control-plane.example:6443",
        "--set=clusterCIDR=10.244.0.0/16",
        &mode,
    ];
    args.extend(more);
    objects(&helm(&args).unwrap()).unwrap()
}

fn pod(objects: &Objects) -> &PodSpec {
    let spec = objects.daemons.spec.as_ref().unwrap();
    spec.template.spec.as_ref().unwrap()
}

fn configuration<'a>(objects: &'a Objects, file: &str) -> &'a str {
    let config = objects.config.as_ref().unwrap();
    &config.data.as_ref().unwrap()[file]
}

/// What is dropped and what is added.
fn capabilities(container: &Container) -> (String, String) {
    let context = container.security_context.as_ref().unwrap();
    let capabilities = context.capabilities.clone().unwrap();
    let words = |list: Option<Vec<String>>| list.unwrap_or_default().join(" ");
    (words(capabilities.drop), words(capabilities.add))
}

#[test]
fn the_base_keeps_the_names_and_the_configuration_of_kubeadm() {
    let base = objects(&kustomize("base").unwrap()).unwrap();
    assert_eq!(base.config, None, "kubeadm's own stays");
    let pod = pod(&base);
    for name in [
        &base.daemons.metadata.name,
        &base.account.metadata.name,
        &pod.service_account_name,
        &base.role.rules.as_ref().unwrap()[0]
            .resource_names
            .as_ref()
            .unwrap()
            .first()
            .cloned(),
    ] {
        assert_eq!(name.as_deref(), Some("kube-proxy"));
    }
    let selector = &base.daemons.spec.as_ref().unwrap().selector;
    let labels = selector.match_labels.as_ref().unwrap();
    // it cannot be changed in an object that exists
    assert_eq!(
        labels.iter().collect::<Vec<_>>(),
        [(&"k8s-app".to_owned(), &"kube-proxy".to_owned())]
    );
    assert_eq!(pod.priority_class_name.as_deref(), Some("system-node-critical"));
    assert_eq!(pod.host_network, Some(true));
    assert_eq!(base.cluster_binding.role_ref.name, "system:node-proxier");
}

#[test]
fn only_the_set_up_is_privileged() {
    for mode in Mode::ALL {
        let objects = overlay(mode);
        let pod = pod(&objects);
        let [set_up] = pod.init_containers.as_deref().unwrap() else {
            panic!("one init container");
        };
        let [main] = pod.containers.as_slice() else {
            panic!("one container");
        };
        assert_eq!(set_up.security_context.as_ref().unwrap().privileged, Some(true));
        let context = main.security_context.as_ref().unwrap();
        assert_eq!(context.privileged, None);
        assert_eq!(context.allow_privilege_escalation, Some(false));
        assert_eq!(context.read_only_root_filesystem, Some(true));
        let add = match mode {
            Mode::Nftables => "NET_ADMIN",
            Mode::Iptables | Mode::Ipvs | Mode::Userspace => "NET_ADMIN NET_RAW",
        };
        assert_eq!(capabilities(main), ("ALL".to_owned(), add.to_owned()));
    }
}

/// What the containers start is what the program accepts: their flags, with the files of the ConfigMap.
#[test]
fn the_program_accepts_what_the_containers_say() {
    for mode in Mode::ALL {
        for objects in [overlay(mode), chart(mode, &[])] {
            let dir = tempfile::tempdir().unwrap();
            for file in ["config.conf", "kubeconfig.conf"] {
                std::fs::write(dir.path().join(file), configuration(&objects, file)).unwrap();
            }
            let containers = pod(&objects)
                .containers
                .iter()
                .chain(pod(&objects).init_containers.iter().flatten());
            for container in containers {
                accepted(container, mode, dir.path());
            }
        }
    }
}

fn accepted(container: &Container, mode: Mode, dir: &Path) {
    let (program, flags) = container.command.as_ref().unwrap().split_first().unwrap();
    assert_eq!(program, "/usr/bin/ferry");
    let written = dir.join("written");
    let place = |flag: &String| {
        flag.replace("/var/lib/kube-proxy", &dir.to_string_lossy())
            .replace("$(NODE_NAME)", "node-a")
    };
    let mut command = ferry().unwrap();
    command
        .args(flags.iter().map(place))
        .arg("--write-config-to")
        .arg(&written);
    let out = command.output().unwrap();
    assert!(
        out.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    let written = std::fs::read_to_string(written).unwrap();
    assert!(
        written.contains(&format!("\nmode: {}\n", mode.as_str())),
        "{written}"
    );
    assert!(written.contains("\nclusterCIDR: 10.244.0.0/16\n"), "{written}");
}

/// One truth: what kustomize makes and what the chart makes differ in the labels that helm asks for, and in the image's tag.
#[test]
fn the_chart_says_what_the_manifests_say() {
    for mode in Mode::ALL {
        let (mut manifests, mut chart) = (overlay(mode), chart(mode, &["--set=image.tag=x"]));
        for objects in [&mut manifests, &mut chart] {
            for metadata in [
                &mut objects.account.metadata,
                &mut objects.cluster_binding.metadata,
                &mut objects.role.metadata,
                &mut objects.binding.metadata,
                &mut objects.daemons.metadata,
                &mut objects.config.as_mut().unwrap().metadata,
            ] {
                metadata.labels = None;
                // an old kubectl writes none as {}
                metadata.annotations = metadata.annotations.take().filter(|a| !a.is_empty());
            }
            let template = &mut objects.daemons.spec.as_mut().unwrap().template;
            template.metadata.as_mut().unwrap().annotations = None;
            let pod = template.spec.as_mut().unwrap();
            for container in pod
                .containers
                .iter_mut()
                .chain(pod.init_containers.iter_mut().flatten())
            {
                let image = container.image.take().unwrap();
                assert_eq!(image.trim_end_matches(":x"), "ferry");
            }
            for text in objects
                .config
                .as_mut()
                .unwrap()
                .data
                .as_mut()
                .unwrap()
                .values_mut()
            {
                let value: serde_json::Value = serde_saphyr::from_str(text).unwrap();
                *text = value.to_string();
            }
        }
        assert_eq!(manifests, chart);
    }
}

#[test]
fn the_chart_is_clean_and_its_values_are_checked() {
    let least = "deploy/chart/ferry/ci/lint-values.yaml";
    let least = format!("--values={}", repository().join(least).display());
    helm(&["lint", "--strict", &least]).unwrap();
    let refused = |set: &str, word: &str| {
        let error = helm(&["template", &least, set]).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(word), "{set}: {error}");
    };
    refused("--set=mode=ebpf", "mode");
    refused("--set=apiServer=", "apiServer");
    refused("--set=maxUnavailable=100%", "maxUnavailable");
    refused("--set=clusterCIDR=pods", "clusterCIDR");
    refused("--set=imagee.tag=1", "imagee");
    // a field of the configuration wins over the chart's own
    let own = chart(
        Mode::Ipvs,
        &["--set=config.ipvs.scheduler=mh,config.oomScoreAdj=-999"],
    );
    let text = configuration(&own, "config.conf");
    assert!(
        text.contains("scheduler: mh") && text.contains("oomScoreAdj: -999"),
        "{text}"
    );
}

/// As a person would: everything is made, and made again nothing changes.
#[test]
fn they_can_be_applied() {
    let api = Api::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("all.yaml");
    std::fs::write(&file, kustomize("overlays/nftables").unwrap()).unwrap();
    let apply = || {
        let mut command = Command::new("kubectl");
        command
            .env("HOME", dir.path())
            .args(["--server", &api.url(), "apply", "--validate=false", "--filename"])
            .arg(&file);
        let out = command.output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let count = |text: &str, word: &str| text.lines().filter(|line| line.ends_with(word)).count();
    let first = apply();
    assert_eq!(count(&first, "created"), 6, "{first}");
    let second = apply();
    assert_eq!(count(&second, "unchanged"), 6, "{second}");
}
