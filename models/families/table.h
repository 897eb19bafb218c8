// One line a family, each defined in the file of its name. Used by families.cpp.
#pragma once

#include "models/families/families.h"

namespace outrider {

extern const Family kLlama, kMistral, kMinistral3, kQwen2, kQwen3, kSmollm3, kGranite, kOlmo2,
    kOlmo3, kPhi3, kGlm4, kGemma2, kGemma3Text, kGemma4Text, kCohere2, kStarcoder2, kStablelm,
    kGptNeox, kGpt2, kOpt, kFalcon, kMixtral, kQwen2Moe, kQwen3Moe, kGraniteMoe, kGlm4Moe,
    kMinimaxM2, kGptOss, kDeepseekV3, kKimiK2;

inline constexpr const Family* kFamilies[] = {
    &kLlama,      &kMistral,    &kMinistral3, &kQwen2,      &kQwen3,      &kSmollm3,
    &kGranite,    &kOlmo2,      &kOlmo3,      &kPhi3,       &kGlm4,       &kGemma2,
    &kGemma3Text, &kGemma4Text, &kCohere2,    &kStarcoder2, &kStablelm,   &kGptNeox,
    &kGpt2,       &kOpt,        &kFalcon,     &kMixtral,    &kQwen2Moe,   &kQwen3Moe,
    &kGraniteMoe, &kGlm4Moe,    &kMinimaxM2,  &kGptOss,     &kDeepseekV3, &kKimiK2};

}  // namespace outrider
