//! A run that resumes with other parameters of samples reports the difference.

use bytes::Bytes;
use spdl_core::{
    Batch, BatchLayout, DatasetSource, Labeled, PipelineBuilder, Result, StageOptions, State,
};
use spdl_media::augment::{
    AugMix, Augment, Augmenter, AutoAugment, ColorJitter, CutMix, ErasingValue, GaussianBlur,
    Interpolation, Mixup, Operation, PolicyStep, RandAugment, RandomAdjustSharpness, RandomAffine,
    RandomApply, RandomAutocontrast, RandomChoice, RandomEqualize, RandomErasing, RandomGrayscale,
    RandomInvert, RandomOrder, RandomPerspective, RandomPosterize, RandomRotation, RandomSolarize,
    TimmRandAugment, TrivialAugmentWide,
};
use spdl_media::{
    CodecRegistry, FillImage, ImageTransform, Limits, Mode, SampleFormat, image_fields,
};

use crate::files::data;

/// The parameters as text, one per line.
fn text_of(parameters: impl Iterator<Item = (String, String)>) -> String {
    parameters.map(|(name, value)| format!("{name}: {value}\n")).collect()
}

fn of(augment: impl Augment) -> String {
    text_of(Augmenter::new().then(augment).parameters())
}

/// Each augmentation with its parameters, and variants that differ in one setting.
fn augmentations() -> Vec<(&'static str, String, Vec<String>)> {
    let jitter = || ColorJitter::new().brightness(0.25).contrast(0.25).saturation(0.25).hue(0.125);
    let rotation = || RandomRotation::new(10.0);
    let affine = || RandomAffine::new(10.0);
    let perspective = RandomPerspective::new;
    let erasing = || RandomErasing::new().probability(0.25);
    let policy =
        |magnitude| PolicyStep { operation: Operation::Rotate, probability: 0.5, magnitude };
    let policies = |second: PolicyStep| of(AutoAugment::new().policies(vec![[policy(1), second]]));
    let nearest = Interpolation::Nearest;
    let bilinear = Interpolation::Bilinear;
    let white = Some([255; 3]);
    vec![
        (
            "augmentation 1: ColorJitter
augmentation 1 brightness: 0.75 to 1.25
augmentation 1 contrast: 0.75 to 1.25
augmentation 1 hue: -0.125 to 0.125
augmentation 1 saturation: 0.75 to 1.25
",
            of(jitter()),
            vec![
                of(jitter().brightness(0.9)),
                of(jitter().contrast(0.9)),
                of(jitter().saturation(0.9)),
                of(jitter().hue(0.1)),
                of(ColorJitter::new().contrast(0.25).saturation(0.25).hue(0.125)),
            ],
        ),
        (
            "augmentation 1: GaussianBlur
augmentation 1 kernel: [3, 3]
augmentation 1 sigma: 0.1 to 2
",
            of(GaussianBlur::new(3)),
            vec![
                of(GaussianBlur::new(5)),
                of(GaussianBlur::new(3).kernel(3, 5)),
                of(GaussianBlur::new(3).sigma_between(0.1, 2.5)),
            ],
        ),
        (
            "augmentation 1: RandomGrayscale\naugmentation 1 probability: 0.1\n",
            of(RandomGrayscale::new()),
            vec![of(RandomGrayscale::new().probability(0.2))],
        ),
        (
            "augmentation 1: RandomInvert\naugmentation 1 probability: 0.5\n",
            of(RandomInvert::new()),
            vec![of(RandomInvert::new().probability(0.2))],
        ),
        (
            "augmentation 1: RandomEqualize\naugmentation 1 probability: 0.5\n",
            of(RandomEqualize::new()),
            vec![of(RandomEqualize::new().probability(0.2))],
        ),
        (
            "augmentation 1: RandomAutocontrast\naugmentation 1 probability: 0.5\n",
            of(RandomAutocontrast::new()),
            vec![of(RandomAutocontrast::new().probability(0.2))],
        ),
        (
            "augmentation 1: RandomPosterize
augmentation 1 bits: 4
augmentation 1 probability: 0.5
",
            of(RandomPosterize::new(4)),
            vec![of(RandomPosterize::new(5)), of(RandomPosterize::new(4).probability(0.2))],
        ),
        (
            "augmentation 1: RandomSolarize
augmentation 1 probability: 0.5
augmentation 1 threshold: 128.5
",
            of(RandomSolarize::new(128.5)),
            vec![of(RandomSolarize::new(128.0)), of(RandomSolarize::new(128.5).probability(0.2))],
        ),
        (
            "augmentation 1: RandomAdjustSharpness
augmentation 1 factor: 2
augmentation 1 probability: 0.5
",
            of(RandomAdjustSharpness::new(2.0)),
            vec![
                of(RandomAdjustSharpness::new(2.5)),
                of(RandomAdjustSharpness::new(2.0).probability(0.2)),
            ],
        ),
        (
            "augmentation 1: RandomRotation
augmentation 1 center: none
augmentation 1 degrees: -10 to 10
augmentation 1 fill: [0, 0, 0]
augmentation 1 interpolation: Nearest
",
            of(rotation()),
            vec![
                of(RandomRotation::between(-10.0, 20.0)),
                of(rotation().interpolation(bilinear)),
                of(rotation().center(1.0, 2.0)),
                of(rotation().center(2.0, 1.0)),
                of(rotation().fill(None)),
                of(rotation().fill(white)),
            ],
        ),
        (
            "augmentation 1: RandomAffine
augmentation 1 center: none
augmentation 1 degrees: -10 to 10
augmentation 1 fill: [0, 0, 0]
augmentation 1 interpolation: Nearest
augmentation 1 scale: 1 to 1
augmentation 1 shear: [0 to 0, 0 to 0]
augmentation 1 translate: [0, 0]
",
            of(affine()),
            vec![
                of(affine().degrees_between(-10.0, 20.0)),
                of(affine().translate(0.1, 0.0)),
                of(affine().translate(0.0, 0.1)),
                of(affine().scale_between(0.5, 1.0)),
                of(affine().shear(5.0)),
                of(affine().shear_between((0.0, 0.0), (-5.0, 5.0))),
                of(affine().interpolation(bilinear)),
                of(affine().center(1.0, 2.0)),
                of(affine().fill(white)),
            ],
        ),
        (
            "augmentation 1: RandomPerspective
augmentation 1 distortion: 0.5
augmentation 1 fill: [0, 0, 0]
augmentation 1 interpolation: Bilinear
augmentation 1 probability: 0.5
",
            of(perspective()),
            vec![
                of(perspective().distortion(0.25)),
                of(perspective().probability(0.25)),
                of(perspective().interpolation(nearest)),
                of(perspective().fill(None)),
            ],
        ),
        (
            "augmentation 1: RandomErasing
augmentation 1 area: 0.02 to 0.33
augmentation 1 aspect: 0.3 to 3.3
augmentation 1 probability: 0.25
augmentation 1 value: [0, 0, 0]
",
            of(erasing()),
            vec![
                of(erasing().probability(0.5)),
                of(erasing().area_between(0.02, 0.4)),
                of(erasing().aspect_between(0.3, 3.0)),
                of(erasing().value(ErasingValue::Random)),
                of(erasing().value(ErasingValue::Constant([0.0, 0.5, 0.0]))),
            ],
        ),
        (
            "augmentation 1: RandAugment
augmentation 1 bins: 31
augmentation 1 magnitude: 9
augmentation 1 operations: 2
augmentation 1 sampling: Nearest, outside none
",
            of(RandAugment::new()),
            vec![
                of(RandAugment::new().operations(3)),
                of(RandAugment::new().magnitude(10)),
                of(RandAugment::new().magnitudes(30)),
                of(RandAugment::new().interpolation(bilinear)),
                of(RandAugment::new().fill(white)),
            ],
        ),
        (
            "augmentation 1: TimmRandAugment
augmentation 1 deviation: 0
augmentation 1 increasing: false
augmentation 1 magnitude: 10
augmentation 1 maximum: 10
augmentation 1 operations: 2
augmentation 1 probability: 0.5
augmentation 1 sampling: Bilinear, outside [128, 128, 128]
",
            of(TimmRandAugment::new()),
            vec![
                of(TimmRandAugment::new().deviation(0.5)),
                of(TimmRandAugment::new().uniform()),
                of(TimmRandAugment::new().increasing(true)),
                of(TimmRandAugment::new().magnitude(9.0)),
                of(TimmRandAugment::new().maximum(9.0)),
                of(TimmRandAugment::new().operations(3)),
                of(TimmRandAugment::new().probability(1.0)),
                of(TimmRandAugment::new().interpolation(nearest)),
                of(TimmRandAugment::new().fill(white)),
            ],
        ),
        (
            "augmentation 1: TrivialAugmentWide
augmentation 1 bins: 31
augmentation 1 sampling: Nearest, outside none
",
            of(TrivialAugmentWide::new()),
            vec![
                of(TrivialAugmentWide::new().magnitudes(30)),
                of(TrivialAugmentWide::new().interpolation(bilinear)),
                of(TrivialAugmentWide::new().fill(white)),
            ],
        ),
        (
            "augmentation 1: AutoAugment
augmentation 1 policies: [[Rotate 0.5 1, Rotate 0.5 2]]
augmentation 1 sampling: Nearest, outside none
",
            policies(policy(2)),
            vec![
                of(AutoAugment::new()),
                policies(policy(3)),
                policies(PolicyStep { probability: 0.75, ..policy(2) }),
                policies(PolicyStep { operation: Operation::ShearX, ..policy(2) }),
                of(AutoAugment::new().interpolation(bilinear)),
                of(AutoAugment::new().fill(white)),
            ],
        ),
        (
            "augmentation 1: AugMix
augmentation 1 all_operations: true
augmentation 1 alpha: 1
augmentation 1 depth: none
augmentation 1 sampling: Bilinear, outside none
augmentation 1 severity: 3
augmentation 1 width: 3
",
            of(AugMix::new()),
            vec![
                of(AugMix::new().severity(4)),
                of(AugMix::new().mixture_width(4)),
                of(AugMix::new().chain_depth(Some(3))),
                of(AugMix::new().alpha(0.5)),
                of(AugMix::new().all_operations(false)),
                of(AugMix::new().interpolation(nearest)),
                of(AugMix::new().fill(white)),
            ],
        ),
        (
            "augmentation 1: RandomApply
augmentation 1 of: RandomPosterize
augmentation 1 of bits: 4
augmentation 1 of probability: 0.5
augmentation 1 probability: 0.5
",
            of(RandomApply::new(RandomPosterize::new(4))),
            vec![
                of(RandomApply::new(RandomPosterize::new(4)).probability(0.25)),
                of(RandomApply::new(RandomPosterize::new(4).probability(0.25))),
                of(RandomApply::new(RandomPosterize::new(5))),
                of(RandomApply::new(RandomInvert::new())),
            ],
        ),
        (
            "augmentation 1: RandomChoice
augmentation 1 of 1: RandomInvert
augmentation 1 of 1 probability: 0.5
augmentation 1 of 2: RandomPosterize
augmentation 1 of 2 bits: 4
augmentation 1 of 2 probability: 0.5
augmentation 1 weights: [1, 0.5]
",
            of(RandomChoice::new()
                .or(RandomInvert::new())
                .or_weighted(RandomPosterize::new(4), 0.5)),
            vec![
                of(RandomChoice::new().or(RandomInvert::new()).or(RandomPosterize::new(4))),
                of(RandomChoice::new().or(RandomInvert::new())),
                of(RandomChoice::new().or(RandomPosterize::new(4)).or(RandomInvert::new())),
            ],
        ),
        (
            "augmentation 1: RandomOrder
augmentation 1 of 1: RandomInvert
augmentation 1 of 1 probability: 0.5
augmentation 1 of 2: RandomPosterize
augmentation 1 of 2 bits: 4
augmentation 1 of 2 probability: 0.5
",
            of(RandomOrder::new().and(RandomInvert::new()).and(RandomPosterize::new(4))),
            vec![
                of(RandomOrder::new().and(RandomInvert::new())),
                of(RandomOrder::new().and(RandomPosterize::new(4)).and(RandomInvert::new())),
            ],
        ),
    ]
}

#[test]
fn parameters_contain_each_setting_of_an_augmentation() {
    let mut all = Vec::new();
    for (expected, base, variants) in augmentations() {
        // Saved states contain these texts. A change makes older states invalid.
        assert_eq!(base, expected);
        all.push(base);
        all.extend(variants);
    }
    let count = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count, "two augmentations have the same parameters");
}

#[test]
fn parameters_contain_the_order_of_augmentations() {
    let [grey, invert] = [RandomGrayscale::new().probability(0.5), RandomGrayscale::new()];
    let both = Augmenter::new().then(grey.clone()).then(invert.clone());
    let turned = Augmenter::new().then(invert).then(grey);
    assert_ne!(text_of(both.parameters()), text_of(turned.parameters()));
    assert_eq!(text_of(both.parameters()), text_of(both.clone().parameters()));
    assert_eq!(text_of(Augmenter::new().parameters()), "");
}

#[test]
fn parameters_contain_each_setting_of_batch_augmentations() {
    let mixup = |classes, alpha| text_of(Mixup::new(classes, alpha).unwrap().parameters());
    let cutmix = |classes, alpha| text_of(CutMix::new(classes, alpha).unwrap().parameters());
    assert_eq!(mixup(10, 0.2), "augmentation: Mixup\nalpha: 0.2\nclasses: 10\n");
    assert_eq!(cutmix(10, 1.0), "augmentation: CutMix\nalpha: 1\nclasses: 10\n");
    let all = [mixup(10, 0.2), mixup(10, 1.0), mixup(11, 0.2), cutmix(10, 0.2), cutmix(11, 0.2)];
    for (at, one) in all.iter().enumerate() {
        assert!(!all[at + 1..].contains(one), "{one}");
    }
    let erasing = text_of(RandomErasing::new().parameters());
    assert!(erasing.starts_with("augmentation: RandomErasing\narea: 0.02 to 0.33\n"), "{erasing}");
}

/// A pipeline of one image eight times, in batches of two.
fn run(transform: &ImageTransform, augmenter: Augmenter) -> PipelineBuilder<Batch> {
    let items: Vec<_> = (0..8).map(|label| Labeled { value: "rgb.png", label }).collect();
    let decode = StageOptions::new("decode")
        .parameters(transform.parameters())
        .parameters(augmenter.parameters());
    let layout = BatchLayout::new(2, image_fields(transform));
    let transform = transform.clone();
    PipelineBuilder::new(DatasetSource::new(items))
        .map("read", |item: Labeled<&str>| {
            Ok(Labeled { value: Bytes::from(data(item.value)), label: item.label })
        })
        .fill(decode, layout, move || {
            FillImage::new(&CodecRegistry::with_defaults(), &transform, &Limits::default())?
                .augment(augmenter.clone())
        })
        .seed(7)
        .deterministic()
}

/// The state after the first batch.
fn state_after_one_batch(builder: PipelineBuilder<Batch>) -> Result<State> {
    let mut pipeline = builder.build()?;
    pipeline.next().transpose()?;
    pipeline.state()
}

fn mismatch(builder: PipelineBuilder<Batch>, state: State) -> String {
    builder.resume(state).build().unwrap_err().message().to_owned()
}

#[test]
fn resume_with_other_augmentations_reports_the_difference() {
    let transform = ImageTransform::new(24).mode(Mode::Train);
    let jitter = |amount| Augmenter::new().then(ColorJitter::new().brightness(amount));
    let state = state_after_one_batch(run(&transform, jitter(0.125))).unwrap();
    assert!(run(&transform, jitter(0.125)).resume(state.clone()).build().is_ok());
    for (other, words) in [
        (jitter(0.5), "decode: augmentation 1 brightness was 0.875 to 1.125, is 0.5 to 1.5"),
        (
            Augmenter::new().then(RandAugment::new()),
            "decode: augmentation 1 was ColorJitter, is RandAugment",
        ),
        (jitter(0.125).then(RandomInvert::new()), "augmentation 2 was absent, is RandomInvert"),
        (Augmenter::new(), "augmentation 1 was ColorJitter, is absent"),
    ] {
        let message = mismatch(run(&transform, other), state.clone());
        assert!(message.contains(words), "{message}");
    }
    let other = transform.filter(spdl_media::ResizeFilter::Lanczos3);
    let message = mismatch(run(&other, jitter(0.125)), state);
    assert!(message.contains("stage decode: filter was Bilinear, is Lanczos3"), "{message}");
}

#[test]
fn resume_with_other_batch_augmentations_reports_the_difference() {
    let transform = ImageTransform::new(24).format(SampleFormat::NCHW_F32);
    let filled = || run(&transform, Augmenter::new());
    let mixup = |alpha| {
        let mixup = Mixup::new(8, alpha).unwrap();
        let options = StageOptions::new("mix").parameters(mixup.parameters());
        filled().stage(options, move || Ok(mixup.clone()))
    };
    let cutmix = |alpha| {
        let cutmix = CutMix::new(8, alpha).unwrap();
        let options = StageOptions::new("mix").parameters(cutmix.parameters());
        filled().stage(options, move || Ok(cutmix.clone()))
    };
    let erasing = |probability| {
        let erasing = RandomErasing::new().probability(probability);
        let options = StageOptions::new("mix").parameters(erasing.parameters());
        filled().stage(options, move || Ok(erasing.clone()))
    };
    let state = state_after_one_batch(mixup(0.25)).unwrap();
    assert!(mixup(0.25).resume(state.clone()).build().is_ok());
    for (other, words) in [
        (mixup(1.0), "stage mix: alpha was 0.25, is 1"),
        (cutmix(0.25), "stage mix: augmentation was Mixup, is CutMix"),
    ] {
        let message = mismatch(other, state.clone());
        assert!(message.contains(words), "{message}");
    }
    let message = mismatch(erasing(0.5), state_after_one_batch(erasing(0.25)).unwrap());
    assert!(message.contains("stage mix: probability was 0.25, is 0.5"), "{message}");
}
