// Steps of another engine, compared with those of one device. Here the other engine is Orthant itself, with planted
// differences.
#include "runtime/reference.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "base/errors.h"
#include "checkpoint/safetensors.h"
#include "runtime/tensor_files.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tiny_run.h"

namespace orthant::reference_test {
namespace {

constexpr const char* kMatrix = "step_1.gradient.model.layers.0.mlp.up_proj.weight";

class Reference : public testing::Test {
 protected:
  void SetUp() override { write_reference(path_, trace_, plan_, run_.data()); }

  // Changes the tensors of the file.
  void change(const std::function<void(std::map<std::string, at::Tensor>&)>& edit,
              const std::string& dtype = "float64") {
    std::map<std::string, at::Tensor> tensors;
    {
      const SafetensorsFile file(path_);
      for (const TensorInfo& info : file.tensors()) {
        tensors[info.name] = tensor_of_file(file.tensor(info.name), path_).clone();
      }
    }
    edit(tensors);
    std::vector<TensorBytes> stored;
    for (auto& [name, tensor] : tensors) {
      tensor = tensor.contiguous();
      stored.push_back({name, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), bytes_of(tensor)});
    }
    write_safetensors(path_, stored, {{"dtype", dtype}});
  }
  ReferenceReport compare() const { return compare_reference(path_, trace_, plan_, run_.data()); }
  std::string refusal() const {
    return message_of<DataError>([&] { compare(); });
  }

  const TempFolder folder_;
  const std::string path_ = folder_ / "steps.safetensors";
  const TinyRun run_{{"training.dtype=float64", "data.mask_documents=true", "data.long_documents=cut"}};
  const Plan plan_ = run_.plan(1);
  const OracleTrace trace_ = trace_oracle(plan_, run_.data(), 3);
};

TEST_F(Reference, EqualStepsAreOk) {
  EXPECT_EQ(reference_steps(path_), 3);
  const ReferenceReport report = compare();
  EXPECT_TRUE(report.ok) << report.first_difference;
  EXPECT_EQ(report.steps.size(), 3u);
  EXPECT_EQ(report.bounded_steps, 3);
  EXPECT_EQ(report.steps[2].loss_error + report.steps[2].norm_error + report.worst_gradient.relative_error, 0);
  EXPECT_GT(report.gradients, 10);
  EXPECT_EQ(report.gradients, report.own_gradients);
  const SafetensorsFile file(path_);
  const at::Tensor positions = tensor_of_file(file.tensor("step_1.positions"), path_);
  EXPECT_EQ(positions.sizes(), tensor_of_file(file.tensor("step_1.tokens"), path_).sizes());
  EXPECT_GT(tensor_of_file(file.tensor("step_2.learning_rate"), path_).item<double>(), 0);
}

TEST_F(Reference, DifferencesAreFoundInTheirSteps) {
  change([](auto& tensors) { tensors["step_2.loss"] *= 1 + 1e-9; });
  EXPECT_TRUE(says(compare().first_difference, {"step 2: the loss", "1.00e-09", "rounding in float64"}));
  SetUp();
  change([](auto& tensors) { tensors[kMatrix][0][0] += 1e-3; });
  EXPECT_TRUE(says(compare().first_difference, {"step 1: the gradient of model.layers.0.mlp.up_proj.weight"}));
  SetUp();
  change([](auto& tensors) { tensors["step_3.gradient_norm"].fill_(NAN); });
  EXPECT_TRUE(says(compare().first_difference, {"step 3: the gradient norm, nan"}));
  SetUp();
  change([](auto& tensors) { tensors[kMatrix][0][0] = NAN; });
  EXPECT_FALSE(compare().ok);
  EXPECT_TRUE(std::isinf(compare().worst_gradient.relative_error));
  SetUp();
  change([](auto& tensors) { tensors["step_2.learning_rate"] *= 2; });
  EXPECT_TRUE(says(compare().first_difference, {"step 2: the learning rate is "}));
  // Roundings in float32 explain more, and only the first step has a bound.
  SetUp();
  change([](auto& tensors) { tensors["step_1.loss"] *= 1 + 1e-7, tensors["step_2.loss"] *= 1.1; }, "float32");
  EXPECT_TRUE(compare().ok) << compare().first_difference;
  change([](auto& tensors) { tensors["step_1.loss"] *= 1.1; }, "float32");
  EXPECT_FALSE(compare().ok);
}

TEST_F(Reference, SomeTensorsAreOptional) {
  change([](auto& tensors) {
    std::erase_if(tensors, [](const auto& one) { return !one.first.ends_with(".loss") && one.first != kMatrix; });
  });
  const ReferenceReport report = compare();
  EXPECT_TRUE(report.ok);
  EXPECT_EQ(report.gradients, 1);
  EXPECT_GT(report.own_gradients, 10);
}

TEST_F(Reference, BadFilesAreRefused) {
  change([](auto& tensors) { tensors["step_2.tokens"][1][3] += 1; });
  EXPECT_TRUE(says(refusal(), {path_, "step_2.tokens must be those of the run", "--write-reference"}));
  SetUp();
  change([](auto& tensors) { tensors["step_1.labels"] = tensors["step_1.labels"].narrow(0, 0, 1); });
  EXPECT_TRUE(says(refusal(), {"step_1.labels must be those of the run"}));
  SetUp();
  change([](auto& tensors) { tensors["step_1.gradient.model.layers.0.mlp.up_proj.weigth"] = at::zeros({1}); });
  EXPECT_TRUE(says(refusal(), {"the model has no", "did you mean model.layers.0.mlp.up_proj.weight?"}));
  SetUp();
  change([](auto& tensors) { tensors[kMatrix] = tensors[kMatrix].t(); });
  EXPECT_TRUE(says(refusal(), {"up_proj.weight must have the shape"}));
  SetUp();
  change([](auto& tensors) { tensors["step_1.loss"] = at::zeros({2}); });
  EXPECT_TRUE(says(refusal(), {"step_1.loss must hold 1 number, and has 2"}));
  SetUp();
  change([](auto&) {}, "float8");
  EXPECT_TRUE(says(refusal(), {"dtype = \"float8\" must be float32"}));
  change([](auto& tensors) { tensors.erase("step_2.loss"); });
  EXPECT_TRUE(says(message_of<DataError>([&] { reference_steps(path_); }), {"there is \"step_2.", "no step_2.loss"}));
  change([](auto& tensors) { tensors.erase("step_1.loss"); });
  EXPECT_TRUE(says(message_of<DataError>([&] { reference_steps(path_); }), {"no step_1.loss", "docs/verify.md"}));
}

}  // namespace
}  // namespace orthant::reference_test
